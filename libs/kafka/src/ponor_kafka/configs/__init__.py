"""Every topic and broker setting of Kafka 4.3.1: name, type, default, bounds, synonyms, scope and effect in
Ponor.

Pure data and functions: the controller validates changes with it, the broker describes settings with it, and
the compatibility table is generated from it.
"""
