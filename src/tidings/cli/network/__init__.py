"""Commands of the live network.

In reading order:

    init             `tidings init`: a development network in a folder
    broker           `tidings broker …`; and `as_client`, with which the other commands connect
    broker_options   the options of `tidings broker run`
    publish          `tidings publish`
    subscribe        `tidings subscribe`
    trace            `tidings trace`: the route of an event
    dlq              `tidings dlq …`: dead letters
    envelope         `tidings envelope`: what an envelope reveals without a key
"""
