"""What reads of objects keep in memory: indexes and data blocks, both bounded by bytes."""
