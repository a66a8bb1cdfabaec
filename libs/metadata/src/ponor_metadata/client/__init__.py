"""Sessions, subscriptions and the other connections of a process to the controllers."""
