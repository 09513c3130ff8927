"""A broker: accepts clients and brokers, runs a node, and delivers durably.

In reading order, along the path of an event:

    acceptor            takes connections, of clients and of brokers
    client_session      a client's requests
    publish             from a client's events to the node and the journal
    journal             what must survive a crash, on disk before it is acknowledged
    reliable_sender     drives the origin's side of the `delivery` protocol, over links and the journal
    reliable_receiver   drives the receiving side
    interest_sync       advertises durable subscriptions, and learns of those of other brokers
    durable_queues      events that wait for durable subscribers
    subscriptions       the subscriptions of clients, live and durable

Around it:

    broker              creates the parts, and carries out the node's effects
    bootstrap           joining the overlay
    periodic            background work
    key_managers        the registry, and the key managers that store their state in it
    admin               queries of operators: status, traces, dead letters
    process             a broker as a process, with its signals and exit codes
"""
