"""Streams and the write-ahead logs that their data goes through."""
