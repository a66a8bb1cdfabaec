"""Server-side assignors of consumer groups (KIP-848): pure functions from subscriptions to targets.

`assignment_input.py` has the interface. `uniform.py` balances the number of partitions
(`uniform_homogeneous.py` for equal subscriptions, `uniform_heterogeneous.py` for others); `range.py` assigns
ranges of each topic. `subscribers.py` and `holdings.py` prepare their input, and `steps.py` divides the work.
The behavior is that of Apache Kafka 4's assignors. This package performs no I/O and reads no clock.
"""
