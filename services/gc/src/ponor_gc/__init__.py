"""Garbage collection: deletes objects that nothing refers to.

The controller decides what is garbage and when (its log is the truth); this service claims, deletes and confirms. Any number of processes may run; one that
dies in the middle loses nothing, its claim runs out and the objects are claimed again.
"""
