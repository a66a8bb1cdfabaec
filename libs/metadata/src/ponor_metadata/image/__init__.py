"""The image of all committed batches, the leader's overlay, snapshots, and the read index."""
