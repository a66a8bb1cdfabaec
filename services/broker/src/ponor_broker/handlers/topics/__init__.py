"""Creation and deletion of topics and partitions, reassignments and elections."""
