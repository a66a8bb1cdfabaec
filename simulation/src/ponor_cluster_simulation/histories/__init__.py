"""Checkers of client histories, for simulated runs and for real processes.

They import no service. Clients of real processes write JSON lines.
"""
