"""A broker: accepts clients and brokers, runs a node, and delivers durably.

In reading order, along the way of an event: `acceptor` and `client_session` (a client's requests), `publish`, `journal` (the
disk), `reliable_sender`, `reliable_receiver` and `interest_sync` (drive the `delivery` protocol over links and the journal),
`durable_queues`, `subscriptions`. Around it: `broker` (creates the parts, carries out the node's effects), `bootstrap` (joining
the overlay), `periodic` (background work), `key_managers`, `admin` (queries and traces), `process`.
"""
