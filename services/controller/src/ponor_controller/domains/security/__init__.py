"""Security: credentials of users, and access control lists."""
