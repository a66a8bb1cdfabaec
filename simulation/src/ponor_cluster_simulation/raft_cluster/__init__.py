"""A Raft group of the shipped core in one pure, seeded loop: no asyncio, no bytes on a wire, tens of thousands of events a second.

`ponor_raft` has neither clock nor disk nor network, so a simulation of it needs no event loop either. What the whole simulator cannot afford by seed (hundreds of
elections, thousands of crashes a minute) is done here; what lies around the core is the whole simulator's business.
"""
