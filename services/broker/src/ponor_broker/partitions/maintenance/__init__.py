"""Maintenance of open partitions outside the request path: retention, trims, producer expiry."""
