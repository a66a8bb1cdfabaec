"""Kafka record batches, as they lie in objects, become Arrow batches with the columns of Spark's Kafka connector. No Spark, no object store in here."""
