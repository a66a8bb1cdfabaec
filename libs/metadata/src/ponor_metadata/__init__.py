"""Cluster metadata, shared by controllers, brokers, workers and tools.

`tables`: schemas, the interfaces of tables and views, column codecs, packed ranges. `nouns`: one file per
noun with its rows, schemas, apply rules and invariants. `image`: the rows of all committed batches, the
leader's overlay, snapshots, compiled code, the read index. `client`: sessions, subscriptions and the other
connections to the controllers.
"""
