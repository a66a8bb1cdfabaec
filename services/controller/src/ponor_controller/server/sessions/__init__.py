"""Sessions: one stream of frames per node process, with operations that are executed once."""
