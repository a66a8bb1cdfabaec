"""Raft groups of the shipped core in one seeded loop: no asyncio, no encoding, about 40,000 events a second.

`ponor_raft` has no clock, disk or network, so its simulation needs no event loop. It can afford
hundreds of elections per seed, which the simulation of whole clusters cannot.
"""
