"""Ports to the outside world: time, randomness, disks, networks and object stores.

Service logic uses only these ports, so the same code runs on a real machine and in the simulator. This
package imports no other Ponor package.
"""
