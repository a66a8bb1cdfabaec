"""Raft consensus, sans-I/O: the input is a message or a tick, the output instructions.

This package uses no clock, socket, file, thread or event loop, and entries are opaque. Start with
`ponor_raft.node.RaftNode`; docs/design/consensus.md#the-raft-core explains the design.
"""
