"""Connectors to systems that are both source and sink.

In reading order:

    kafka              topics as a source of events and subscriptions, and as a sink with exactly-once batches
    schema_registry    Avro, Protobuf and JSON messages whose schema is in a registry
    table_format       Delta and Iceberg tables: names, detection, reading in workers, commits that happen once
    delta              Delta Lake by the library `deltalake`
    iceberg            Apache Iceberg by the library `pyiceberg`
    spark_datasource   the live network as the Spark data source `tidings`, for reading and writing
"""
