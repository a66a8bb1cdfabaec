"""Checkers of client histories, for simulated runs and for real processes. They import no service."""
