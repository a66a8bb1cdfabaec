"""Topics and partitions as the metadata image shows them, topic configs, and operations on topics."""
