"""The protocols that the others are measured against.

The modules, in reading order:

    flooding   every node forwards each new event to all its neighbours: it reaches all, at the highest cost
    gossip     every node forwards each new event to some neighbours, drawn at random
    simple     the baseline of the CBDLO paper: every copy goes to some peers of a random view, up to a hop limit
    tera       TERA: a random walk to a topic, then a flood among the topic's subscribers

`flooding` and `gossip` run on a graph that they are given, `simple` and `tera` on `tidings.overlay.random_graph`.
"""
