"""The job `profile`: number, origin, time and size of a topic's records."""
