"""Raft consensus, sans-I/O: a message or a tick in, instructions out.

Nothing in this package knows a clock, a socket, a file, a thread or an event loop; what an entry means is its owner's business. Begin with
`ponor_raft.node.RaftNode`; docs/design/consensus.md#the-raft-core says what was chosen and why.
"""
