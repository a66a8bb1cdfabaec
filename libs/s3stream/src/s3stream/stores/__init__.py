"""Object stores: a durable local directory, S3, and the wrappers for retries, metering and limits.

The port is `ponor_runtime.object_store`; `open_store.py` puts a store together from a URL. Beside the Disk port, the stores of S3 are the one place
of this package that does I/O.
"""
