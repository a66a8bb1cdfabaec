"""Subscriptions: a snapshot, then committed batches, each encoded once for all subscribers."""
