"""Service state of one partition: whether it accepts appends and reads, and the error if not.

serving → sealed (for a move: no appends; confirmed data is still readable, because no other broker can lead
yet) → held (the streams are being closed: another broker may lead, so nothing may be read) → closed. In every
state, the partition may also fail. A cancelled move reverts "sealed" and "held".
"""

from __future__ import annotations

from s3stream.errors import StreamClosedError

from ponor_broker.partitions.errors import PartitionInTransitError
from ponor_broker.partitions.identity import PartitionId


class ServiceState:
    """Service state of one partition. The hot path reads two flags; the `check` methods build the error."""

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
        """Refuse appends until `unseal`."""
        self.is_sealed = self.refuses_appends = True

    def unseal(self) -> None:
        """Accept appends again after a cancelled move."""
        assert self.is_sealed, f"{self._identity} is not sealed"
        assert not self.is_held, f"{self._identity}: its streams may be closed already"
        self.is_sealed = False
        self.refuses_appends = self.refuses_reads

    def hold(self) -> None:
        """Refuse reads too, because another broker may lead before this broker's image shows it."""
        assert self.is_sealed, f"{self._identity}: its streams may only be closed after `seal`"
        self.is_held = self.refuses_reads = True

    def release(self) -> None:
        """Revert `hold`, because the streams were not closed and no other broker can lead. The partition
        stays sealed.
        """
        assert self.is_held, f"{self._identity} is not held"
        self.is_held = False
        self.refuses_reads = self.is_closed or self.failure is not None

    def close(self) -> None:
        """Refuse everything, permanently."""
        self.is_closed = self.refuses_appends = self.refuses_reads = True

    def fail(self, failure: BaseException) -> None:
        """Refuse everything because of an error."""
        self.failure = failure
        self.refuses_appends = self.refuses_reads = True

    def check_appends(self) -> None:
        """Check whether clients may append.

        Raises:
            PartitionInTransitError: the partition moves.
            StreamClosedError: the partition is closed here, or has failed.
        """
        if self.is_sealed and not self.is_closed and self.failure is None:
            raise PartitionInTransitError(self._identity.key, f"{self._identity} is moving to another broker")
        self.check_changes()

    def check_changes(self) -> None:
        """Check whether the broker itself may write.

        Raises:
            StreamClosedError: the partition is closed here, moves, or has failed.
        """
        self.check_reads()
        if self.is_sealed:
            raise StreamClosedError(f"{self._identity} is moving to another broker")

    def check_reads(self) -> None:
        """Check whether the partition may be read.

        Raises:
            StreamClosedError: the partition is closed here, has failed, or its streams are being closed.
        """
        if self.failure is not None:
            raise StreamClosedError(f"{self._identity} failed: {self.failure}") from self.failure
        if self.is_held or self.is_closed:
            raise StreamClosedError(f"{self._identity} is closed on this broker")
