"""The whole Spark job, from Parquet to Parquet."""
