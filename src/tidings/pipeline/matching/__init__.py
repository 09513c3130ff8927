"""Matching on Spark: EVENTS × SUBSCRIPTIONS → DELIVERIES, in batch or as a stream.

Spark workers parse the subscriptions. Then one of two plans runs. In the first, the driver builds one index and
sends a replica to every host, and events are matched where they are (a broadcast join). In the second, for sets
too large for one index, events and subscriptions are shuffled into zones of the attribute space and meet there
(a partitioned join).

In reading order:

    match                 the public `match` and `Matching`; choice of the plan
    parse_subscriptions   conditions as text → boxes, in parallel; what does not parse is rejected
    parsed_cache          what was parsed, kept in a folder for the next run
    index_replica         the index as a worker uses it: memory-mapped, one copy per host; matched pairs
    index_distribution    a folder of files on every host, through one broadcast or artifact
    sizing                into how many tasks a step is cut
    partitioned           the second plan: zones, buckets, partitions
    direct_parquet        the first plan from Parquet to Parquet, where workers read and write the files themselves
    sql_functions         the same as functions for SQL
    batch_step            what a worker does with a micro-batch of a stream: validate, match, count
    zone_step             the same for more conditions than one index should hold: validate, then meet in zones
"""
