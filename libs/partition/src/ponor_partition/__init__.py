"""The state of a partition in its own streams: entries of the Meta stream and the log meta
(docs/formats/partition-meta.md).

Pure, because two kinds of readers share it: brokers, which also write it, and cold readers, which bypass
brokers.
"""
