"""Spark jobs on topics, as a library.

`spark/jobs/*.py` runs them under spark-submit, `ponor spark` in a terminal.
"""
