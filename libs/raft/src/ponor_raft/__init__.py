"""Raft consensus without I/O: inputs are messages and ticks, outputs are instructions.

This package uses no clock, socket, file, thread or event loop, and does not interpret entries. Start with
`ponor_raft.node.RaftNode`; docs/design/consensus.md#the-raft-core explains the design.
"""
