"""Handlers of the APIs for credentials and access control lists."""
