"""Object stores: a durable local directory, S3, and the wrappers for retries, metering and limits.

The port is `ponor_runtime.object_store`; `open_store.py` composes a store for a URL. Except for the
Disk port, the S3 stores are the only modules of this package that do I/O.
"""
