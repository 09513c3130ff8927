"""An unstructured overlay: one random graph of all nodes, the lower layer of CBDLO, TERA and Simple.

Each node keeps a partial view of the network, a few peers chosen at random, and refreshes it by exchanging entries
with other nodes (Cyclon). The exchanges also carry access points: for some attribute, a node that belongs to the
overlay of that attribute's subscribers. A message finds such an overlay by random walk: it visits one node after the
other until a node has an access point in its table.

The modules, in reading order:

    partition       attribute axes, cuts of a value range, and the intervals that an interest covers
    cyclon          the partial view and how it is exchanged
    access_points   the table of access points and what it keeps when it is full
    random_walk     CRAWL: a walk with a trace, which restarts with half the hops where it is blocked
    graph           the four parts joined: join, periodic exchange, announcement, search; its messages and options
    router          the base class of routers that run on the graph
"""
