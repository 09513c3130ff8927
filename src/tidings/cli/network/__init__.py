"""Commands on the live network: brokers, publishing, subscribing, traces and dead letters."""
