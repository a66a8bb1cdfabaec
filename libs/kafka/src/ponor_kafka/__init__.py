"""The Kafka wire protocol without I/O: messages, codec, framing, record batches, error codes.

This package opens no socket, file or thread and depends on no other Ponor package. Malformed input raises
`ponor_kafka.errors.KafkaWireError`.
"""
