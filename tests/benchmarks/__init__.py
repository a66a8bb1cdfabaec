"""Benchmarks of running processes; see main.py."""
