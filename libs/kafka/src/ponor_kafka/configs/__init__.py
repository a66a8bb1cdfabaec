"""Kafka's settings: every topic and broker setting that Kafka 4.3.1 knows, as facts.

What lives here: names, types, defaults, bounds, synonyms, how a change is made, and what each setting does in Ponor. No wire, no state: the
controller decides by it, the broker describes by it, the compatibility table is written from it.
"""
