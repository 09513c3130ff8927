"""CBDLO: a content-based overlay of two layers, random walks below and one balanced tree per attribute above.

Theory of operation
===================

*Lower layer.* All nodes form a random graph (`tidings.overlay.random_graph`). It is cheap to maintain under churn, but
it does not know who wants what.

*Upper layer.* The subscribers of an attribute form the *topology* of that attribute. The bounds of their interests cut
the attribute's value range into *partitions* (the paper's virtual nodes). The partitions are the nodes of a balanced
binary tree, and each is owned by one subscriber, which stores the interests that cover it.

*An event* is routed once for each of its attributes. A random walk through the lower layer (CRAWL) ends at the first
node that is a member of the attribute's topology or has an access point to it in its table. From there the event goes
from owner to owner, along the tree's links, to the partition that contains its value. The owner of that partition
notifies the subscribers registered there.

    publisher ⇢ walk ⇢ walk ⇢ access point → tree → tree → owner of the partition → subscribers

*Matching* (CDM) is distributed over the attributes. As published, each subscriber counts the attributes of an event
that have matched and accepts the event when all have. By default, an interest is indexed under its two narrowest
attributes only, and the owner of the partition checks the whole interest.

*An interest* is registered with the *coordinator* of the topology. It plans the tree,
pushes changes to the owners in acknowledged rounds, and replicates all registrations to two *replicas*, one of which
takes over if it fails. It routes only the events whose value a node cannot read and those that the tree lost several
times. A node that finds no topology for an attribute founds one. If two come about, the later one merges into the
earlier. Where one coordinator would be a hot spot, an attribute has several topologies on purpose; a node registers in
the one that the hash of its id says, and an event visits all.

The paper says nothing of how trees are built, balanced and repaired; all of that is ours. The two profiles:

                        paper                                    robust (the default)
    walks               one for each attribute, unacknowledged   two, after a look into the own table; the publisher
                                                                 retries until all subscribers have acknowledged
    matching            per attribute, counted by subscribers    the whole interest, by the owner of the partition
    access points       tables follow popularity                 by hash; a walk goes to who is likely to have it
    tree routing        parents and children                     the nearest partition known (fingers)
    a new topology      is found by gossip                       is also announced once to all nodes

The modules, in reading order:

    options               the options and their two presets
    messages              what nodes send each other
    attribute_tree        the tree of partitions, as its coordinator plans it
    coordinator           the coordinator of a topology, and all coordinators at one node
    replicas              copies of registrations at other nodes; topologies that have ended
    owned_partitions      the partitions that a node owns, and the next hop from there
    subscriber            the node's own interests and its memberships
    upper_layer           all of these roles at one node
    publications          events of this node that not all subscribers have yet
    notification          from a partition to its subscribers
    conjunction_counter   counting matched attributes, as published
    router                the two layers joined
"""
