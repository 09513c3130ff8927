"""Rights: what a chain of signed grants allows, and the tokens that carry it.

The owner of an event type grants rights, holders delegate part of theirs, and each link can only
narrow what the one before it allowed. Reading a token gives the one right that is left.

In reading order:

    actions      what a right can allow
    reduction    grants, and the right that a chain of them reduces to (SPKI's 5-tuple reduction)
    biscuit      the same as Biscuit tokens: grant, delegate, verify
    revocation   signed records that revoke a link, and the table of those that a broker knows
    online       the online test of a right: a signed list of the rights that hold now
    publishers   which keys may publish, for readers of tables
"""
