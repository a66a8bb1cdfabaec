"""Sessions, subscriptions and the other connections from a node to the controllers."""
