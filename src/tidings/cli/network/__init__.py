"""Commands of the live network.

In reading order:

    init             `tidings init`: a development network in a folder
    broker           `tidings broker …`
    broker_options   the options of `tidings broker run`
    status           a broker's status in words
    session          how a command becomes a client: --as, contexts, the connection
    contexts         where contexts are kept
    context          `tidings context …`
    publish          `tidings publish`
    event_files      events from JSON lines, CSV and Parquet
    subscribe        `tidings subscribe`
    ls               `tidings ls …`: types, brokers, subscriptions
    bench            `tidings bench …`: throughput and latency
    trace            `tidings trace`: the route of an event
    dlq              `tidings dlq …`: dead letters
    envelope         `tidings envelope`: what an envelope reveals without a key
"""
