"""Requests from broker to broker in Kafka's protocol."""
