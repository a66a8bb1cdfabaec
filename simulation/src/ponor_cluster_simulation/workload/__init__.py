"""Clients of a simulated cluster. They never crash, repeat unanswered requests, and record all answers."""
