"""Balancing: loads of brokers, and moves that make them even (docs/design/balancing.md)."""
