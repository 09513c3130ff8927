"""The checkpoint of a streaming pipeline: what must survive a crash.

In reading order:

    batch_log              for each batch the version of its subscriptions, then its counts; locks the checkpoint
    subscription_versions  the subscriptions as a log of versions, and the index of each version

Spark's own checkpoint, in the sub-folder `spark`, holds the offsets of the event source.
"""
