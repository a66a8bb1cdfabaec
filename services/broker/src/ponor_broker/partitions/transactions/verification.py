"""Proofs that the coordinator has a partition in a producer's transaction (KIP-890).

A handler gets a proof before it sends a request to the coordinator, and passes it to the first append of the
transaction. A marker of the producer that is appended in between makes the proof void: the coordinator's
answer may then concern the transaction that the marker ended.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from ponor_broker.coordination.transactional_append import Verification

__all__ = ["Verification", "Verifications"]


class Verifications:
    """The pending proofs of one partition, one per producer."""

    def __init__(self) -> None:
        self._pending: WeakValueDictionary[int, Verification] = WeakValueDictionary()

    def begin(self, producer_id: int, producer_epoch: int, *, begins_at_zero: bool) -> Verification:
        """Return the producer's pending proof if it has the same epoch, otherwise a new one."""
        pending = self._pending.get(producer_id)
        if pending is not None and pending.producer_epoch == producer_epoch:
            return pending
        self.void(producer_id)
        begun = self._pending[producer_id] = Verification(
            producer_id, producer_epoch, begins_at_zero=begins_at_zero
        )
        return begun

    def holds(self, verification: Verification) -> bool:
        """Return whether a proof is valid here. A proof that was taken before the partition was closed and
        opened again is invalid: another leader may have appended a marker.
        """
        return self._pending.get(verification.producer_id) is verification

    def void(self, producer_id: int) -> None:
        """Make the pending proof of a producer void."""
        pending = self._pending.pop(producer_id, None)
        if pending is not None:
            pending.is_void = True
