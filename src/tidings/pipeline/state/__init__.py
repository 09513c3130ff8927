"""The checkpoint of a streaming pipeline: what must survive a crash.

In reading order:

    epoch                  which run owns the checkpoint; a later run fences the earlier ones
    batch_log              for each batch the version of its subscriptions, then its counts
    subscription_versions  the subscriptions as a log of versions, and the index of each version

All of it goes through `tidings.pipeline.storage`, so a checkpoint may be on a local disk, HDFS or an object store.
Spark's own checkpoint, in the sub-folder `spark-EPOCH`, holds the offsets of the event source.
"""
