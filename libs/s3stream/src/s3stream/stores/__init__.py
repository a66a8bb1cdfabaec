"""Object stores: a durable local directory, S3, and the wrappers for retries, metering and limits.

The port is `ponor_runtime.object_store`; `open_store.py` composes a store for a URL. All
I/O of this package goes through the Disk port or the S3 stores.
"""
