"""Pastry: a self-organising ring of identifiers with leaf sets and prefix routing. IRBR and Hermes run on it.

Theory of operation. It is a prefix network (`tidings.overlay.prefix`) whose ids also stand for points on a circle.
Beside its routing table each node keeps its nearest nodes on both sides (the *leaf set*). Leaves watch each other by
heartbeats and agree on who is between them. So a lookup that has an answer from both sides of a key has missed nobody,
and the leaves know for certain which cells near a node are empty.

Modules, in reading order:

    routing_table   the leaf set beside the table, and the next hop to a key; knows and never sends
    lookup          one iterative lookup, which closes in on a point of the circle from both sides
    ring            the protocol: heartbeats between leaves, repair of the leaf set
"""
