"""Measurements of the broker from outside; see main.py."""
