"""The protocols of streams and objects as rules over small values: what may happen next, and what is so afterwards.

One text for two uses: `tests/models` searches everything that these rules allow, and `committed_steps` holds them against what real services committed. They
are written from the documents, not from `ponor_metadata.apply`, and share no code with it: a rule that is wrong in one of the two shows as a difference.
"""
