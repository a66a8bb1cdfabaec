"""Taking over: what other processes left in their write-ahead logs in the object store is committed by this broker, when the controllers say so.

Nothing of how a log is walked, fenced and replayed: that is s3stream's. Only whose turn it is, how often it is tried, and what is told of it.
"""
