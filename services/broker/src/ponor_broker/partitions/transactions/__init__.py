"""Transactions in a partition: open ones, the index of aborted ones, proofs (docs/design/transactions.md)."""
