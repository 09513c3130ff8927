"""Sealed events and filters: from values to frames and back, one by one and in columns.

A publisher's `Sealer` encodes each attribute, encrypts it under the key of its group and epoch, and
writes a frame. A reader's `Opener` checks a frame and decrypts the attributes it has keys for. Within a
trust domain a relay may attach plaintext (a cache) so that the next hop need not decrypt.

In reading order:

    frame             the bytes of one event on the wire
    value_codec       one value as plaintext and back, padding
    nonce             (millisecond, counter) pairs that never repeat
    sealer, opener    one event into a frame and back
    plaintext_cache   the plaintext that a relay attaches, and what sealer and opener share
    fast_path         frames with plaintext, recognised by their shape
    replay            each event once
    signing           a publisher's signature, alone or over a batch
    sealed_filter     subscriptions that a broker reads as far as its keys go
    column_codec      whole columns as plaintext and back
    batch             tables into frames and back
    accelerated       the cipher over a whole column, by OpenSSL in a compiled loop
"""
