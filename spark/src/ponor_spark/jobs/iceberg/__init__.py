"""Copy a topic into an Iceberg table exactly once: docs/design/spark.md#jobs."""
