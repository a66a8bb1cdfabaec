"""Rules for changes of the metadata, one folder per noun."""
