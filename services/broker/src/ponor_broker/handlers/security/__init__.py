"""Handlers of the APIs for authentication, credentials and access control lists."""
