"""Simulation of whole clusters in virtual time: the shipped services, their clients, random faults and the
checks.
"""
