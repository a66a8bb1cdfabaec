"""Delivery of the records of share groups at the leader of each partition (docs/design/share-groups.md)."""
