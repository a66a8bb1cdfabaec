"""The job `verify`: check a topic's objects, and compare them with what consumers read."""
