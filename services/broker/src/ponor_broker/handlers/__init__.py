"""Request handlers, one package per API family: from a decoded request to a response message.

A handler translates requests into calls of `partitions/` and `groups/`, and their errors into Kafka's codes.
It keeps no state except caches and bounds on running requests. Produce, Fetch and Metadata parse the
request's bytes themselves and answer with buffers.
"""
