"""The Kafka wire protocol without any I/O: messages, codec, framing, record batches, error codes.

Nothing here opens a socket, a file or a thread, and nothing knows of Ponor's other members: bytes go in, values come
out, and the other way round. Everything malformed is reported as `ponor_kafka.errors.KafkaWireError`.
"""
