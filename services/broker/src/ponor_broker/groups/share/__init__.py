"""Share groups (KIP-932): members, targets, and for which partitions delivery states exist. No I/O."""
