"""The door to the outside world.

Service logic touches time, chance, disks, networks and object stores only through the ports of this package, so that the same
code runs on a real machine and under the simulator. Nothing of Ponor is imported here.
"""
