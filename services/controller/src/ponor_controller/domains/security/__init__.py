"""Security: the credentials of users."""
