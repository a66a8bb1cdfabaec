"""Request handlers, one file per API family: from a decoded request to a response message.

A handler turns requests into calls of `partitions/` and `groups/` and their errors into Kafka's codes; it keeps no state of its own beyond
bounds on what is in process. Produce and Fetch have a raw path: they see the request's bytes and answer with buffers.
"""
