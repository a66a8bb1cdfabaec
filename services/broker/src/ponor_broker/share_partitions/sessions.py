"""Share sessions: the partitions that a member fetches from this broker (KIP-932).

A member has one session at a broker. Its epoch rises with each request. The session ends with a request of
epoch −1, or when its connection ends; the member's records become available then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_runtime.telemetry import Telemetry

from ponor_broker.partitions.identity import PartitionKey

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1
SESSION_PARTITIONS_MAX: Final = 1_000_000
"""Partitions of all sessions of a broker."""
PARTITIONS_PER_SESSION_MAX: Final = 10_000
"""Partitions of one session, and of one request. Each costs the broker work with every fetch."""


class ShareSessionError(Exception):
    """The request is refused: the session does not exist, has another epoch, or there is no room for it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_partitions(count: int) -> None:
    """Check how many partitions a request or a session has.

    Raises:
        ShareSessionError: INVALID_REQUEST.
    """
    if count > PARTITIONS_PER_SESSION_MAX:
        raise ShareSessionError(
            ErrorCode.INVALID_REQUEST,
            f"{count} partitions are too many; name at most {PARTITIONS_PER_SESSION_MAX} of a broker",
        )


class ShareSessionKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class ShareSession:
    """One session. `partitions` is ordered; a request starts with another one each time.

    `on_closed` is called when the session ends or is replaced.
    """

    __slots__ = ("epoch", "is_closed", "key", "on_closed", "partitions")

    def __init__(self, key: ShareSessionKey, partitions: Iterable[PartitionKey]) -> None:
        self.key = key
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[PartitionKey, None] = dict.fromkeys(partitions)
        self.is_closed = False
        self.on_closed: Callable[[], None] | None = None

    def close(self) -> None:
        """Mark the session as ended or replaced."""
        self.is_closed = True
        if self.on_closed is not None:
            self.on_closed()

    def rotated(self) -> list[PartitionKey]:
        """Return the partitions, beginning with another one for each epoch."""
        partitions = list(self.partitions)
        begin = self.epoch % len(partitions) if partitions else 0
        return partitions[begin:] + partitions[:begin]


Ended = Callable[[ShareSession, bool], None]
"""Called with a session that ended, and whether it was the last one of its group at this broker."""


class ShareSessions:
    """The sessions of a broker. There is no eviction: at the bound, a new member is refused, as in Kafka."""

    def __init__(self, sessions_max: int, telemetry: Telemetry, *, on_ended: Ended) -> None:
        self._sessions_max = sessions_max
        self._on_ended = on_ended
        self._by_key: dict[ShareSessionKey, ShareSession] = {}
        self._per_group: dict[str, int] = {}
        self._partitions = 0
        telemetry.gauge("ponor_share_sessions", lambda: len(self._by_key))
        self._refused = telemetry.counter("ponor_share_sessions_refused_total")

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: ShareSessionKey) -> bool:
        return key in self._by_key

    def begin(self, key: ShareSessionKey, partitions: Iterable[PartitionKey]) -> ShareSession:
        """Start a session; a former one of the member is replaced, and the member keeps its records.

        Raises:
            ShareSessionError: SHARE_SESSION_LIMIT_REACHED.
        """
        former = self._by_key.get(key)
        if former is not None:
            former.close()
            self._partitions -= len(former.partitions)
        elif len(self._by_key) >= self._sessions_max:
            self._refused.add()
            raise ShareSessionError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"the broker has {self._sessions_max} share sessions; raise group_share_sessions_max",
            )
        else:
            self._per_group[key.group_id] = self._per_group.get(key.group_id, 0) + 1
        session = self._by_key[key] = ShareSession(key, ())
        self._change(session, partitions, ())
        return session

    def resume(
        self,
        key: ShareSessionKey,
        epoch: int,
        added: Iterable[PartitionKey] = (),
        forgotten: Sequence[PartitionKey] = (),
    ) -> ShareSession:
        """Continue a session with the next epoch and change its partitions.

        Raises:
            ShareSessionError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.get(key)
        if session.epoch != epoch:
            raise ShareSessionError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the request has epoch {epoch}, but the share session is at {session.epoch}",
            )
        session.epoch = INITIAL_EPOCH + 1 if epoch == EPOCH_MAX else epoch + 1
        self._change(session, added, forgotten)
        return session

    def _change(
        self, session: ShareSession, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]
    ) -> None:
        self._partitions -= len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self._partitions += len(session.partitions)
        try:
            check_partitions(len(session.partitions))
        except ShareSessionError:
            self.end(session)
            raise
        if self._partitions > SESSION_PARTITIONS_MAX:
            self.end(session)
            self._refused.add()
            raise ShareSessionError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"the share sessions of the broker have {SESSION_PARTITIONS_MAX} partitions; add brokers",
            )

    def get(self, key: ShareSessionKey) -> ShareSession:
        """Return a member's session.

        Raises:
            ShareSessionError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._by_key.get(key)
        if session is None:
            raise ShareSessionError(
                ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {key.member_id} has no share session here"
            )
        return session

    def end(self, session: ShareSession) -> None:
        """End a session. Idempotent."""
        if self._by_key.get(session.key) is not session:
            return
        del self._by_key[session.key]
        session.close()
        self._partitions -= len(session.partitions)
        group_id = session.key.group_id
        self._per_group[group_id] -= 1
        is_last = not self._per_group[group_id]
        if is_last:
            del self._per_group[group_id]
        self._on_ended(session, is_last)
