"""The log of one partition: streams, segments, Meta stream, time index."""
