"""Decode values written with a schema registry into columns beside the raw ones."""
