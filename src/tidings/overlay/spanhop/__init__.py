"""Spanhop with MGNP: content-based publish/subscribe over a K-D partitioned space, one zone for each broker.

Theory of operation
-------------------

**Space.** Each attribute is an axis. An event is a point, a subscription a set of boxes. A K-D
tree cuts the space into zones, one for each broker: a newcomer gets half of another broker's
zone. The broker that owns an event's zone matches it, and notifies the home brokers of the
subscriptions that match. No broker matches on the way.

**Routing.** Greedy routing from zone to adjacent zone takes d/4 · N^(1/d) hops, as in CAN. A
Spanhop broker also keeps, for every k-th cut that made its zone (m = 2^k), a snapshot of the
neighbour table it had then: the Ancestor Queue. Neighbours recorded when zones were large are
long-range links, and half of log2 N hops are enough, whatever d. Snapshots grow old, so a
message that comes to a broker twice goes on greedily; the tables are an accelerator, and
correctness never depends on them.

**Proximity (MGNP).** Brokers store their network coordinates in the zones themselves, so that
one look-up finds the broker of a distant zone that is nearest by network.

    publish      RoutedEvent to the zone of the event        → match there → Notification to each home broker
    subscribe    PlaceSubscription to each zone of the box   → Stored, from each, to the home broker
    join         Join to a random point → Offer, Accept, Committed: half a zone
    a failure    neighbours notice; one takes the zone over, with its replica of the zone's records

**Ownership.** A broker claims its zones with epochs. Every change of owner raises the epoch, and
where claims overlap the highest wins. There is no agreement protocol: after a network partition
has healed, the lower claims are ceded.

**Reliability.** With the profile "robust" each hop is acknowledged and retransmitted, each zone's
records are replicated to one neighbour, and home brokers refresh their subscriptions. With the
profile "paper" each message is sent once, and only one that bounces is sent another way.

**Confidentiality.** Every broker on the way reads the coordinates of an event and the boxes of a
subscription. An attribute that must stay secret must not be an axis.

The modules, in reading order:

    quantisation             attributes → cells: events as points, conditions as boxes
    next_hop                 the choice of the next hop: a pure function
    messages                 what brokers send to each other
    zone_ownership           owned zones, neighbours' advertisements, claims and epochs
    forwarding               messages hop by hop to their zones, acknowledged and retransmitted
    neighbours               heartbeats, failures, takeover of orphaned zones
    subscription_placement   records of subscriptions in the zones they touch
    notification             from a matched event to the home brokers
    zone_transfer            join, leave, split and merge
    table_refresh            keeping the tables of ancestors up to date
    network_coordinates      GNP and Vivaldi
    proximity                MGNP: the index of network coordinates
    router                   `Spanhop`, one broker's part in all this, and `SpanhopOptions`
    static_partition         a whole partition computed at once
    precomputed              a whole network of routers computed at once, for simulations
"""
