"""Nodes: registration, drain, failover (docs/design/moves-and-failover.md#failover)."""
