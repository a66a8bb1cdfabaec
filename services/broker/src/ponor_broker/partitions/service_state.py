"""Whether a partition takes appends and gives reads, and why not.

What lives here: the states of one partition and their words. It serves; it is sealed (a move: no appends, and what was confirmed is still read, since
nobody else can lead yet); it is held (its streams are being closed: another broker may lead from now on, so nothing is told any more); it is
closed, or has failed. Sealed is taken back when a move is cancelled, the others are not.
"""

from __future__ import annotations

from s3stream.errors import StreamClosedError

from ponor_broker.partitions.errors import PartitionInTransitError
from ponor_broker.partitions.identity import PartitionId


class ServiceState:
    """Of one partition. The two flags are for the hot path; the checks find the words when one of them is set."""

    __slots__ = (
        "_identity",
        "failure",
        "is_closed",
        "is_held",
        "is_sealed",
        "refuses_appends",
        "refuses_reads",
    )

    def __init__(self, identity: PartitionId) -> None:
        self._identity = identity
        self.failure: BaseException | None = None
        self.is_sealed = False
        self.is_held = False
        self.is_closed = False
        self.refuses_appends = False
        self.refuses_reads = False

    def seal(self) -> None:
        """No appends from now on, until `unseal`."""
        self.is_sealed = self.refuses_appends = True

    def unseal(self) -> None:
        """As before `seal`: the move was cancelled."""
        assert self.is_sealed, f"{self._identity} is not sealed"
        assert not self.is_held, f"{self._identity}: its streams may be closed already"
        self.is_sealed = False
        self.refuses_appends = self.refuses_reads

    def hold(self) -> None:
        """Nothing at all from now on: another broker may lead before this one hears of it."""
        assert self.is_sealed, f"{self._identity}: streams of a partition that takes appends are not closed"
        self.is_held = self.refuses_reads = True

    def release(self) -> None:
        """Undo `hold`: the streams were not closed, and nobody else can lead. The partition stays sealed."""
        assert self.is_held, f"{self._identity} is not held"
        self.is_held = False
        self.refuses_reads = self.is_closed or self.failure is not None

    def close(self) -> None:
        """Nothing at all, for good."""
        self.is_closed = self.refuses_appends = self.refuses_reads = True

    def fail(self, failure: BaseException) -> None:
        """The same, because of an error."""
        self.failure = failure
        self.refuses_appends = self.refuses_reads = True

    def check_appends(self) -> None:
        """For requests of clients.

        Raises:
            PartitionInTransitError: a moment later it is known who takes them.
            StreamClosedError: the partition is closed here, or has failed.
        """
        if self.is_sealed and not self.is_closed and self.failure is None:
            raise PartitionInTransitError(self._identity.key, f"{self._identity} moves to another broker")
        self.check_changes()

    def check_changes(self) -> None:
        """For what the broker itself writes: there is another time, or another broker, for it.

        Raises:
            StreamClosedError: the partition is closed here, moves, or has failed.
        """
        self.check_reads()
        if self.is_sealed:
            raise StreamClosedError(f"{self._identity} moves to another broker")

    def check_reads(self) -> None:
        """For readers.

        Raises:
            StreamClosedError: the partition is closed here, or has failed, or its streams are being closed.
        """
        if self.failure is not None:
            raise StreamClosedError(f"{self._identity} failed: {self.failure}") from self.failure
        if self.is_held or self.is_closed:
            raise StreamClosedError(f"{self._identity} is closed on this broker")
