"""Errors of authentication."""

from __future__ import annotations


class AuthenticationFailedError(Exception):
    """The client is not who it claims to be, or does not follow the protocol. The message contains no
    secret.
    """
