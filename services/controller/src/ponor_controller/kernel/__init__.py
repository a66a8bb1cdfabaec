"""Executes operations: queues, validates, proposes and answers them. Also runs the duties of the leader."""
