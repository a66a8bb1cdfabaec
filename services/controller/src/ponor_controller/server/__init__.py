"""Services of a controller for nodes, subscribers and tools."""
