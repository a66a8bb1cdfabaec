"""Topics, their partitions and configs, keys and producer ids."""
