"""Benchmark of the longest event-loop turn at ten times the sizes that the capacity page supports."""
