"""Produce, producer ids and DescribeProducers."""
