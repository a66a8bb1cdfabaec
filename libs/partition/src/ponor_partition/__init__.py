"""The state of a partition in its own streams: entries of the Meta stream and the log meta
(docs/formats/partition-meta.md).

The code does no I/O, because brokers and cold readers share it. Brokers read and write these streams; cold
readers read them without a broker.
"""
