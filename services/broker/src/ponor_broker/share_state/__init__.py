"""Coordinator of the durable delivery states of share groups (docs/design/share-groups.md)."""
