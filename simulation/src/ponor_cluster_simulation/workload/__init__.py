"""Clients of a simulated cluster: they never die, they repeat what was not answered, and they remember what they were told.

What lives here: who asks and who remembers. What is done to the cluster meanwhile is `ponor_cluster_simulation.faults`; who judges in the end is the scenario.
"""
