"""Objects: reservation, upload commits, reclaiming, and claims of the garbage collector."""
