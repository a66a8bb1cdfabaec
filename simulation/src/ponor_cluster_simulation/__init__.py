"""Whole clusters in virtual time: the shipped services and their clients under drawn faults, and the
checks.
"""
