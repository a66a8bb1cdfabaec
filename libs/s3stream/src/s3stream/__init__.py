"""Streams on object storage: an endless, ordered sequence of record batches per stream, durable before it is acknowledged.

No Kafka knowledge and no RPC in this package: the services implement the ports that `s3stream.ports` states.
"""
