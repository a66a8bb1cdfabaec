"""What is worth compacting, who may do it, and whether the result holds everything."""
