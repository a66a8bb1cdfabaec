"""Objects: format v1, writing, reading, keys and inspection.

Pure, except for the functions that take an `ObjectStore`. The metadata define which object contains what.
"""
