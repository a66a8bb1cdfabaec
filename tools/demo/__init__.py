"""`make demo`: real Kafka clients at work on a fresh cluster, and a picture of what became of their records."""
