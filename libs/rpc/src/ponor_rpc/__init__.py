"""Placeholder until the member is written."""
