"""Access to a running cluster: Kafka requests, controller requests, and the metadata image."""
