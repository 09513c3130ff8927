"""Connectors to systems that are both source and sink.

In reading order:

    kafka              topics as a source of events and subscriptions, and as a sink with exactly-once batches
    spark_datasource   the live network as the Spark data source `tidings`, for reading and writing
"""
