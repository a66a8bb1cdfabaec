"""Verifiable load: records that carry their identity, clients of three families, and checks of the records
read back."""
