"""Fetch: reads from memory and from objects, long polls, fetch sessions."""
