"""Commands of the registry: identities, types, rights and subscriptions.

In reading order:

    registry       `tidings registry …`; and the options and functions that all of these commands share
    identity       `tidings identity …`: key pairs
    domain         `tidings domain …`: organisations and their keys
    type           `tidings type …`: signed event types
    asyncapi       an event type as AsyncAPI, for `tidings type asyncapi`
    grant          `tidings grant …`: rights, as tokens
    tokens         reading and displaying tokens, for `grant` and `subscription`
    subscription   `tidings subscription …`: conditions with the right to them
"""
