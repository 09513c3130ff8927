"""Immune routing: a small connected core of well-linked brokers forwards for a whole scale-free network.

Theory of operation. On a scale-free graph most nodes have few links and some have many. Nodes with at most `delta`
links are *immune*: they receive and never forward, and elect one neighbour in the *core* as their *upper*, which
forwards to them as one of its *lowers*. Members of the core that nobody elected become immune, too, if the core stays
connected without them. (A connected dominating set, with a leaf for every other node.) A broadcast reaches every node
in about one copy each; flooding takes about five.

    role       forwards what it receives first to
    immune     nobody; what it publishes itself, to its upper
    core       its lowers, and the core by `forward`:
               core_flood   all core neighbours but the sender
               core_elim    … except those that the sender reaches itself
               core_tree    its links of a tree that spans the core
    unstable   all neighbours, marked `safe`, and whoever gets it does the same: a flood until roles are clear again

How nodes take their roles (`global_construction.guarded` is the same construction with the whole graph in view):

    Hello           each node to all neighbours, every heartbeat: links, role, upper, root
    CorePromotion   an immune node without a core neighbour makes its best neighbour join the core
    Elect           an immune node to the best of its core neighbours; ElectOk or ElectNo comes back
    Beacon          from the best-ranked node of the core, its *root*, through the core: who gets none is cut off
    Repair          a flood from one piece of the core to find a better-ranked one; RepairPath comes back the way it
                    went, and Bridge promotes the nodes in between
    DemoteAsk       a core node without lowers asks the core within two hops to stay as it is while it checks whether
                    they are connected without it; the worst rank goes first

Rank decides everywhere: more links first, then the smaller id. Every step keeps the core connected and next to every
node, so a new *epoch* (links have changed, ranks are taken anew) only opens the questions again. A step whose message
is lost times out and is taken again; giving up always means staying in the core.

Events are broadcast (`mode="traverse"`) or follow reverse paths that adverts laid (`mode="advertise"`).

Modules, in reading order:

    global_construction   the roles as a function of the whole graph: as published, and guarded
    messages              what nodes send to each other
    neighbour_state       options, and what one node knows of its neighbours and of its own role
    link_delays           round trips to the neighbours, where roles follow delays
    role_election         greeting neighbours, noticing their loss, electing an upper, entering the core
    core_maintenance      root and beacons, joining pieces of the core, leaving the core
    reverse_path          adverts, and the interests and events that follow their paths
    router                the protocol: one node's life from `start` to `leave`
    precomputed           the state of a whole network once all roles are taken
"""
