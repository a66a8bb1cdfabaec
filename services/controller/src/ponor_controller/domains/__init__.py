"""The rules of the metadata, one folder per noun."""
