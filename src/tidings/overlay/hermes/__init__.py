"""Hermes: content-based publish/subscribe over rendezvous-rooted multicast trees, on a Pastry ring (Scribe, Hermes).

Theory of operation. The node whose identifier is nearest to the hash of an event type is the type's *rendezvous*.
An interest travels hop by hop towards it, and every node on the way remembers which child it came from. The paths
of all subscribers thus form one multicast tree per type. An event goes up to the rendezvous, and from there down
every branch below which some interest matches.

    subscribe    InterestRequest up, hop by hop; InterestAck comes back once all nodes above know what they must
    publish      ToRendezvous up, hop by hop; ToSubscribers from there down the tree
    refresh      ChildRefresh to each parent, with a digest of what it should know; the child sends again what it lost

*Covering.* An interest that another one covers stops where the cover is known: nobody further up needs it. When a
cover is withdrawn, the interests that only it covered are announced first.

*Repair.* When a parent falls silent the node replaces it by its next hop of the moment and announces everything there.

Modules, in reading order:

    messages         what nodes send to each other
    multicast_tree   what one node knows of its trees; knows and never sends
    tree_repair      parents that fail or forget, children that fall silent
    router           the protocol: one node's life from `start` to `leave`, and its options
"""
