"""Cluster metadata: what controller, brokers, workers and tools share.

The log holds records (proto/ponor/metadata/v1/records.proto). `apply` turns records into rows, the same on every process; `image` holds
the rows of committed batches; `overlay` shows the leader what is proposed but not committed; `snapshot` carries an image;
`read_index` answers where a stream's data lies; `session` and `subscription` are the two ways to talk to a controller.
"""
