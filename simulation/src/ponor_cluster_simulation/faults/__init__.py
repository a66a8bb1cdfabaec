"""Faults: drawn from the seed before a run begins, executed by an injector, replayed whole or in part."""
