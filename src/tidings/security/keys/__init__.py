"""Group keys: who holds the key of an attribute, how it changes, and how members learn the new one.

Each attribute (or each event type sealed as one) is a key group. The type's key manager admits a
holder that shows a right, and gives it the data key and a leaf of a key tree. When a right ends, the
manager evicts the holder and broadcasts one update, from which every remaining member, and nobody
else, computes the new key. Keys change by credentials, not at every join and leave ("lazy" rekeying).

    join request ──▶ manager: checks the right ──▶ group: key and leaf ──▶ welcome, sealed to the joiner
    a right ends ──▶ group: new data key ──▶ tree: new node keys ──▶ update, broadcast ──▶ members' keyrings

In reading order:

    keyring       the keys that one participant holds, by group and epoch
    group         one key group: the manager's side and a member's side
    trees         key trees, the manager's side: LKH (default) and OFT (the paper's)
    tree_member   key trees, a member's side
    manager       all groups of one event type: join requests, revocation, state on disk
"""
