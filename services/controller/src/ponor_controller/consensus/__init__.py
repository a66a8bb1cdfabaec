"""Agreement of the controllers on the order of record batches, and their durability.

The rest of the controller uses `ports.Consensus`: it proposes batches and receives them committed, in order.
"""
