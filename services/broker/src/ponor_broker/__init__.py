"""The broker: the Kafka protocol on streams in object storage.

From the socket inwards: `listener/` (bytes to frames), `requests/` (order of one client's requests,
frame to handler), `handlers/` (one package per API family), `partitions/` and `groups/`, `storage/`
(s3stream's ports over the controllers). `app` composes everything. Raft and the object format
belong to other members.
"""
