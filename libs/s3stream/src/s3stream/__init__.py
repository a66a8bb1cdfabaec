"""Streams on object storage. A stream is an unbounded sequence of record batches; an append is
durable before it is acknowledged.

This package depends neither on Kafka nor on RPC: the services implement the ports in
`s3stream.ports`.
"""
