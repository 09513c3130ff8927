"""Where deliveries go: files, tables, webhooks, Kafka, the live network.

A sink stores each batch exactly once, or lets the receiver detect duplicates. The job repeats a batch after a crash,
with the same rows, so `put` must be idempotent: one commit record per batch (files), the
batch's number in the table's transaction (Delta, Iceberg), comparing with what the topic
already has (Kafka), or a stable id per delivery (webhooks, the live network). A run that is stale (see
`tidings.pipeline.state.epoch`) must write nothing: a sink calls `epoch.check()` before it does.

In reading order:

    sink              the `Sink` protocol, and `open_sink`, which makes the one that a pipeline's file describes
    files             Parquet or JSON lines, sorted by subscriber; the quarantine; `read_deliveries`
    committed_folder  how a batch of files appears exactly once, on any store
    compaction        `tidings compact`: merges small files of committed batches
    table             Delta and Iceberg tables, by their own transactions
    webhook           HTTP POST of CloudEvents to each subscriber's URL, at least once
    live              the Spark writers that publish rows to the live network

The sinks for Kafka and the live network are in `tidings.pipeline.connectors`, beside the sources of the same systems.

To add a sink:

1. Write a class with `prepare` and `put`, as `Sink` has them, in a module of this package. Deliveries have the
   columns delivery_id, event_id, subscription_id, subscriber, subscriptions_version and, by default, event (JSON).
2. Add its format to `DeliveriesTo.format` in `tidings.pipeline.config`, its options as fields there, and those
   that it needs to `_NEEDS`.
3. Add a case to `open_sink`; import the module there, so that other pipelines do not load it.
4. Test that a batch which is put twice is stored once: see `tests/pipeline/sinks`.
"""
