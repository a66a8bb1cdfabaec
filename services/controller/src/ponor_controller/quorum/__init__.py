"""The quorum as operators see it: questions about it, and changes of it."""
