"""Metadata and DescribeTopicPartitions."""
