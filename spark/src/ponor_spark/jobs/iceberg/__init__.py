"""A topic into an Iceberg table, exactly once: docs/decisions/0034-spark-jobs.md."""
