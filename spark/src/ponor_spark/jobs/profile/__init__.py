"""What a topic is like: how much, of whom, when, how large."""
