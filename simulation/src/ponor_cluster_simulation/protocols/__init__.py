"""The protocols of streams, objects, logs, partitions and compactions as rules over small values.

`tests/models` searches all steps that the rules allow, and `committed_steps` checks the steps of real
services. The rules follow the documents and share no code with `ponor_metadata.nouns`: a wrong rule on one
side makes the two sides differ.
"""
