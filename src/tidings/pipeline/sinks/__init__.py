"""Where deliveries go: files, webhooks, Kafka, the live network.

A sink stores each batch exactly once, or lets the receiver detect duplicates. The job repeats a batch after a crash,
with the same rows, so `put` must be idempotent: writing to a staging folder and renaming it (files), comparing with
what the topic already has (Kafka), or a stable id per delivery (webhooks, the live network).

In reading order:

    sink      the `Sink` protocol, and `open_sink`, which makes the one that a pipeline's file describes
    files     Parquet or JSON lines, by batch and subscriber; and the quarantine
    webhook   HTTP POST of CloudEvents to each subscriber's URL, at least once
    live      the Spark writers that publish rows to the live network

The sinks for Kafka and the live network are in `tidings.pipeline.connectors`, beside the sources of the same systems.

To add a sink:

1. Write a class with `prepare` and `put`, as `Sink` has them, in a module of this package. Deliveries have the
   columns delivery_id, event_id, subscription_id, subscriber, subscriptions_version and, by default, event (JSON).
2. Add its format to `DeliveriesTo.format` in `tidings.pipeline.config`, its options as fields there, and those
   that it needs to `_NEEDS`.
3. Add a case to `open_sink`; import the module there, so that other pipelines do not load it.
4. Test that a batch which is put twice is stored once: see `tests/pipeline/sinks`.
"""
