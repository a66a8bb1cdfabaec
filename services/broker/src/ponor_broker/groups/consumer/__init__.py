"""Consumer groups with server-side assignment (KIP-848), without I/O (docs/design/consumer-groups.md).

`membership.py` is the state machine; `state.py` has the state that it changes only by records (`records.py`).
`reconciliation.py` moves a member from its current to its target assignment.
"""
