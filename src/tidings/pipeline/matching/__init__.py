"""Matching on Spark: the index sent to the events, or both partitioned by zone."""
