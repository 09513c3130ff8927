"""Security on Spark: `admit` decrypts events, `secure` encrypts deliveries for each recipient.

Plans, caches and checkpoints never hold a key or a decrypted event. Workers read keys from a key file, and what
leaves a worker is encrypted again.

In reading order:

    keyfile        keys for workers, in a file that only its owner can read
    decrypt        `admit`: frames → verified, decrypted events
    recipients     rights → what each subscriber may read of which events
    nonce_leases   sender ids and moments, so that no nonce is used twice and a repeated task seals the same bytes
    encrypt        `secure`: deliveries → one frame for each recipient
    step           what a worker does in a secure pipeline: decrypt, match and encrypt in one pass
    job            the driver's side of a secure pipeline: types, rights and sender ids from the registry
"""
