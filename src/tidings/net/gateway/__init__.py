"""The HTTP gateway of a broker.

In reading order: `server`, `openapi` (its operations, as data), `sse` (server-sent events), `subscriptions_api` (the
CloudEvents Subscriptions API), `webhooks`, `dpop` (proofs of possession), `http`.
"""
