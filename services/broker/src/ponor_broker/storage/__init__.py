"""Implementations of s3stream's ports with the controller session and the subscription.

They translate calls into controller operations and look-ups in the image, and the controller's refusals into
storage errors.
"""
