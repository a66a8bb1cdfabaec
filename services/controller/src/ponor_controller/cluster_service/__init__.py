"""The cluster as a whole, as operators' tools ask about it: its end, and its balance."""
