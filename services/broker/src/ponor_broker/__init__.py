"""The broker: the Kafka protocol on streams in object storage.

From the socket inwards, one step a file: `kafka_listener` (bytes to frames), `connection` (order of one client's requests),
`dispatch` (frame to handler), `handlers/` (one file per API family), `partitions/` (what a partition is made of), `storage/` (the
controller adapters that s3stream works through). `app` builds it all. No Raft, no object format in here.
"""
