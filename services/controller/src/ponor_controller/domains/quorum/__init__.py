"""The quorum: its first records, its description and its changes."""
