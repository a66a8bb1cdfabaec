"""Values that were written with a schema registry, decoded beside the raw ones."""
