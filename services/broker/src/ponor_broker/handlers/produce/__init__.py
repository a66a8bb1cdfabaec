"""Produce, InitProducerId and DescribeProducers."""
