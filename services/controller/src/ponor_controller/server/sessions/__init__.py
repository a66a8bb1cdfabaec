"""Sessions: one stream of frames per node process. Each operation in it is executed once."""
