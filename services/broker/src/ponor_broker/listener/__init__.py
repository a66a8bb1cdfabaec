"""The Kafka port: sockets, frames, connection limits."""
