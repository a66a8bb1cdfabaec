"""Replicate record batches: the controllers agree on one order of the batches and store them durably.

The rest of the controller uses `ports.Consensus`: it proposes batches, and receives committed batches in
order.
"""
