"""What a partition's own streams say of it (docs/formats/partition-meta.md): entries of the Meta stream, and the log meta among them.

Pure, for everybody who reads a partition: brokers, which write it, and cold readers, which never talk to one.
"""
