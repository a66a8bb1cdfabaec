"""`make demo`: real Kafka clients on a fresh cluster, and a picture of the objects that hold their
records.
"""
