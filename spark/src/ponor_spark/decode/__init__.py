"""Decode Kafka record batches from objects into Arrow batches with the columns of Spark's Kafka connector.

Independent of Spark and of object stores.
"""
