"""Nodes: registration, drain and failover (docs/design/moves-and-failover.md#failover)."""
