"""From an operation that somebody sent to a batch that is committed, and back to an answer."""
