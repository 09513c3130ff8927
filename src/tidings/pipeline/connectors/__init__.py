"""What sources and sinks share with the other side: Kafka, and the Spark data source `tidings`."""
