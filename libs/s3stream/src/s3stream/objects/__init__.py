"""Objects: their format (v1), writing, reading, keys and inspection.

Pure code except for the functions that take an `ObjectStore`. Which object holds what is metadata and lives outside of this package.
"""
