"""Where events and subscriptions come from: files, tables, streams, Kafka, the live network.

In reading order:

    files                 events and subscriptions in files, as tables (`tidings match`)
    arrow_files           Parquet that Spark cannot read, read by the workers with Arrow
    streams               the event source of a running pipeline, as a stream (`tidings run`)
    staged_batches        batches of a stream as files, for clients of Spark Connect
    validation            records → typed columns; broken records with the reason
    subscription_changes  subscriptions and their changes: a folder, a table or a Kafka topic
    table_stream          a Delta or Iceberg table as a stream, by its versions
    table_changes         subscriptions in such a table, by what its log says has changed
    live                  the Spark reader of a durable subscription on the live network
    read_limits           how much a batch of these two reads; Spark has it from 4.2 on
    demo                  generated events, for trying out a pipeline

To add a source of events:

1. Write a function that returns a streaming DataFrame, either of JSON documents (a binary column `value`) or of typed
   columns. The source must be replayable: for the same offsets it returns the same records after a restart.
2. Add its format to `EventsFrom.format` in `tidings.pipeline.config`, its options as fields there, and those that
   it needs to `_NEEDS`.
3. Add a case to `open_source` in `streams`, which returns a `Source`: the stream, the event type with its id, and
   the kind of records. Import the module there, so that other pipelines do not load it.
4. Test a run that is killed and started again: see `tests/pipeline/test_run_sources.py`.

To add a source of subscriptions, write a class with `poll` and `still_needed`, as `ChangeSource` has them, and add
it to `SubscriptionsFrom.format` and `change_source`.
"""
