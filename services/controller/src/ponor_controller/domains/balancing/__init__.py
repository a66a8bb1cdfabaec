"""Balancing: measure the loads of brokers, and move partitions so that the loads become even
(docs/design/balancing.md).
"""
