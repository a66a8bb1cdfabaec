"""Agreement on the order of record batches, and their durability.

The rest of the controller sees `ports.Consensus` alone: batches go in, come back committed and in order. One voter fulfils it today;
Raft takes its place without a change above this package.
"""
