"""Tapestry: a prefix network without a ring, whose nodes keep the nearest ones by network of each cell. IRBR runs on it.

Theory of operation (Zhao et al., "Tapestry: a resilient global-scale overlay for service deployment", 2004). It is a
prefix network (`tidings.overlay.prefix`) with nothing but the table of cells. It differs from Pastry in four points:

*Neighbours by distance.* Of each cell a node keeps the three to which it measured the shortest round trips, the nearest
first. It measures every node that it pings, and now and then one more that it hears of.

*Property 1.* If a node's table has no entry for a cell, no such node exists. There are no leaves that could tell, so
everything rests on it. A newcomer establishes it by an *acknowledged multicast* (`Insertion`, `InsertionAck`) to all
nodes that share as many digits with it as any node does: for these, and no others, it may fill a hole. Each passes it
on to one node of each of its deeper cells, pings the newcomer, and acknowledges when all of those have. Soft state
repairs what a failure leaves behind: nodes that probe each other also tell which nodes fit the other's table.

*Surrogates.* An identifier that nobody has stands for the node that is found by trying, at each hole, the next digit,
and the one after that. As all nodes have the same holes, every route ends at the same node. It is the one that shares
most digits, so it is also the one that announces a failure.

*Backpointers.* A node knows who has it in its table: those that probe it. It tells them, too, when it leaves.

    Insertion, InsertionAck   the acknowledged multicast about a newcomer

Modules, in reading order:

    routing_table   the table by distance, surrogates, and searches that close in on them; knows and never sends
    messages        what nodes send to each other, beside the messages of every prefix network
    insertion       the acknowledged multicast
    mesh            the protocol: probes, hints, backpointers, and how a newcomer arrives
"""
