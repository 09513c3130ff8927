"""Pastry: a self-organising ring of identifiers with leaf sets and prefix routing. IRBR and Hermes run on it.

Theory of operation. Node ids are strings of digits, all of one length, and stand for points on a circle. A node sees
every other node in exactly one *cell*: the digits that both share, and one more. It keeps a few nodes of each cell (the
*routing table*) and its nearest nodes on both sides (the *leaf set*); that is enough to reach any key in about
log_k N hops.

    Ping, Pong                   liveness, and who is near; also how a newcomer introduces itself
    Heartbeat                    the same between leaves, on schedule, mostly without an answer
    LookupRequest, LookupReply   which nodes are nearer to a key: a node looks up keys step by step
    NodeLeaving                  a node that leaves

A node checks everything it is told about another node by pinging that node: hearsay alone fills no place. A node that
does not answer is *suspected* (`doubted`): it keeps its place but gets no messages, until it answers a ping or counts as
dead. Lookups are iterative, so the node that asks decides how long to wait, and no relay has to remember anything
(docs/decisions/0040-lookups-are-stepwise.md).

Modules, in reading order:

    routing_table   what a node knows of the ring, and the next hop to a key; knows and never sends
    messages        what nodes send to each other
    lookup          one iterative lookup
    ring            the protocol that keeps this state up to date, and the upcalls to whatever runs on it
    router          what routers on a ring have in common
"""
