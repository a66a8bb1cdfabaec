"""How everybody else follows what was committed: a snapshot, then batches, each encoded once for all."""
