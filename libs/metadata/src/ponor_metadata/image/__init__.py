"""The image of all committed batches, the leader's overlay, snapshots of the image, and the read index."""
