"""Rules that several domains apply: placement, ownership of streams, commits of objects."""
