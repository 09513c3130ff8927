"""IRBR, identifier-range-based routing: an event goes from range to range of the identifier space.

Theory of operation. There is no rendezvous node and no tree that could break. It runs on a prefix network, Pastry or
Tapestry. A node sees every other node in one *cell* (see `tidings.overlay.prefix`) and knows for each cell which
interests the nodes in it have (its *filter table*). To publish, it sends the event to one node of each cell in which an
interest matches. That node does the same with the cells inside its own, and so on. Any node of a cell will do, so a
node that has failed is simply replaced by another; and as cells are disjoint, no node gets an event twice.

    213 publishes, 023 and 201 are interested     213 → 031 [0..] → 023      213 → 202 [20.] → 201
    mode "interest": to an interested node        213 → 023                  213 → 201

*Reliability* of events:

    R0   send once; if the message bounces, send it to another node of the range
    R1   each hop is acknowledged
    R2   custody transfer: a node reports completion only when every node in its range has the event

*Subscriptions* are multicast to all nodes the same way, always with custody transfer. An interest that another one in
the same range covers is not announced outside that range (its `scope_row`). It is announced outermost row first, each
row acknowledged before the next, so whoever sees an interest can rely on the rows outside to know it, too. An interest
that is withdrawn first *retires*: whoever relied on it as a cover announces its own first.

*Failures.* The clockwise neighbour of a node that failed multicasts a failure notice, which retires and ends all that
the node had subscribed to. A node that was declared dead by mistake announces its subscriptions again. Nodes compare
their tables now and then (anti-entropy), so whatever a message missed arrives in the end.

Modules, in reading order:

    filter_table               all interests a node must know, by cell; entries, failure notices, the Lamport clock
    messages                   what nodes send to each other
    custody_transfer           multicast to ranges, with responsibility handed from node to node
    subscription_propagation   how a node's own subscriptions become known, and covered or withdrawn
    failure_notices            nodes that failed, and nodes that were declared dead by mistake
    anti_entropy               comparing tables
    router                     the protocol: one node's life from `start` to `leave`, and its options
"""
