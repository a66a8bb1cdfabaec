"""The broker: the Kafka protocol on streams in object storage.

A request passes through `listener/` (bytes to frames), `requests/` (order of one client's requests, frame to
handler) and `handlers/` (one package per API family) to `partitions/`, `groups/` or `transactions/`.
`storage/` implements s3stream's ports with the controllers' session. `app` composes everything. Other members
implement Raft and the object format.
"""
