"""Implementations of s3stream's ports with the controller session and the subscription.

They translate calls into operations and look-ups, and refusals into storage errors.
"""
