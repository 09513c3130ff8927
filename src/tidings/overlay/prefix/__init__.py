"""Prefix networks: what Pastry and Tapestry share. IRBR runs on either, Hermes on Pastry.

Theory of operation. Node ids are strings of digits, all of one length. A node sees every other node in exactly one
*cell*: the digits that both share, and one more. It keeps a few nodes of each cell (the *routing table*); that is
enough to come nearer to any identifier with every hop.

    Ping, Pong                   liveness, and who is near; also how a newcomer introduces itself
    Heartbeat                    the same between neighbours, on schedule, mostly without an answer
    LookupRequest, LookupReply   which nodes are nearer to a key: a node looks up keys step by step
    NodeLeaving                  a node that leaves

A node checks everything it is told about another node by pinging that node: hearsay alone fills no place. A node that
does not answer is *suspected* (`doubted`): it keeps its place but gets no messages, until it answers a ping or counts as
dead. Lookups are iterative, so the node that asks decides how long to wait, and no relay has to remember anything
(docs/decisions/0040-lookups-are-stepwise.md).

A network that derives from `PrefixNetwork` adds three things: how it makes sure that a cell is empty, which node
stands in for an identifier that nobody has, and how a newcomer becomes known to all who must know it
(docs/decisions/0250-one-interface-to-prefix-networks.md).

Modules, in reading order:

    routing_state   what a node knows of the others, by cell; knows and never sends
    messages        what nodes send to each other
    search          one iterative search
    network         the protocol that keeps this state up to date, and the upcalls to whatever runs on it
    router          what routers on a prefix network have in common
"""
