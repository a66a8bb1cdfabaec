"""One incremental fetch session (KIP-227): its partitions, and which of them must be checked.

A thousand idle partitions must cost nothing, so no request iterates over all partitions of a session. A
partition is in `due` if the request changed its fields, if its data did not fit into the last answer, or if
the partition itself changed (`Partition.watch`). When a check finds nothing to report, the partition leaves
`due` and is watched. Unless a fetch waits, the first change ends the watch until the next check, so a busy
partition notifies an idle session only once.

`fetch_session_cache` decides which sessions exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from ponor_kafka.fetch_walk import FetchWalk, TopicKey, WantedPartition

from ponor_broker.handlers.fetch.partition_fetch import PartitionFetch
from ponor_broker.partitions.partition import Partition

INITIAL_EPOCH: Final = 0
FIRST_INCREMENTAL_EPOCH: Final = 1
EPOCH_MAX: Final = (1 << 31) - 1
NO_SESSION: Final = 0

SESSION_BYTES: Final = 1_000
PARTITION_BYTES: Final = 640
"""Memory of one partition without its topic name: measured 560 to 640 bytes with its watcher."""

News: TypeAlias = Callable[[int, bool], None]
"""Called while a fetch waits, with the bytes by which a partition grew, and whether the fetch must be
answered now."""


class SessionPartition(PartitionFetch):
    """A partition of a session."""

    __slots__ = ("_session", "_watched")

    def __init__(self, session: FetchSession, topic: TopicKey, wanted: WantedPartition) -> None:
        super().__init__(topic, wanted)
        self._session = session
        self._watched: Partition | None = None

    def watch(self) -> None:
        """Let the partition notify the session of its changes."""
        if self._watched is not self.partition:
            self.unwatch()
            if self.partition is not None:
                self._watched = self.partition
                self.partition.watch(self._changed, committed=self.is_committed)

    def unwatch(self) -> None:
        """Stop the notifications."""
        if self._watched is not None:
            self._watched.unwatch(self._changed)
            self._watched = None

    def _changed(self, partition: Partition, size_bytes: int) -> None:
        self._session.changed(self, size_bytes, must_answer=not partition.is_serving)


class FetchSession:
    """The partitions of one session. `epoch` is the epoch that the next request must have, `serving_epoch`
    the epoch of `Serving` when the session began.
    """

    def __init__(self, walk: FetchWalk, *, uses_topic_ids: bool, serving_epoch: int = 0) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_INCREMENTAL_EPOCH
        self.uses_topic_ids = uses_topic_ids
        self._isolation_level = walk.isolation_level
        self.serving_epoch = serving_epoch
        self.created_ms = 0
        self.used_ms = 0
        self._partitions: dict[tuple[TopicKey, int], SessionPartition] = {}
        self._due: dict[SessionPartition, None] = {}
        self._topic_bytes = 0
        self._waiting: News | None = None
        self._closed = False
        self._want(walk)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def size_bytes(self) -> int:
        """Memory of the session."""
        return SESSION_BYTES + len(self._partitions) * PARTITION_BYTES + self._topic_bytes

    @property
    def due(self) -> list[SessionPartition]:
        """Partitions to check. Partitions that returned data come last, so that no partition starves."""
        return list(self._due)

    def update(self, walk: FetchWalk) -> None:
        """Apply an incremental request. Make a fetch that waits with the previous epoch answer now."""
        self.epoch = next_epoch(self.epoch)
        self._tell(0, must_answer=True)
        if walk.isolation_level != self._isolation_level:
            # The readable ends depend on the isolation level.
            self._isolation_level = walk.isolation_level
            for one in self._partitions.values():
                one.unwatch()
                self._due.setdefault(one)
        self._want(walk)
        for topic, indexes in walk.forgotten:
            for index in indexes:
                self._forget((topic, index))

    def _want(self, walk: FetchWalk) -> None:
        for topic, rows in walk.topics:
            for wanted in rows:
                key = (topic, wanted[0])
                known = self._partitions.get(key)
                if known is None:
                    known = self._partitions[key] = SessionPartition(self, topic, wanted)
                    self._topic_bytes += len(topic)
                else:
                    known.want(wanted)
                self._due[known] = None

    def _forget(self, key: tuple[TopicKey, int]) -> None:
        known = self._partitions.pop(key, None)
        if known is not None:
            known.unwatch()
            self._due.pop(known, None)
            self._topic_bytes -= len(key[0])

    def examined(self, parts: Iterable[PartitionFetch]) -> None:
        """Note the end of a pass or an answer: partitions with nothing to report leave `due` and
        are watched.
        """
        if self._closed:
            return
        for one in parts:
            assert isinstance(one, SessionPartition)
            if one.is_settled and one in self._due:
                del self._due[one]
                one.watch()

    def answered(self, parts: Iterable[PartitionFetch]) -> None:
        """Note sent results. A partition that returned data goes to the end of the queue."""
        for one in parts:
            assert isinstance(one, SessionPartition)
            one.mark_sent()
            if one.records_bytes:
                if one in self._due:
                    del self._due[one]
                    self._due[one] = None
                # the answer contains the batches; an idle session must not keep them in memory
                one.drop_records()
        self.examined(parts)

    # Waiting

    def wait(self, news: News) -> Callable[[], None]:
        """Call `news` for every change until the returned function is called."""
        assert self._waiting is None, "another fetch of the session is waiting"
        self._waiting = news
        for one in self._due:
            one.watch()

        def leave() -> None:
            if self._waiting is news:
                self._waiting = None

        return leave

    def changed(self, one: SessionPartition, size_bytes: int, *, must_answer: bool) -> None:
        """Record that a partition changed."""
        self._due.setdefault(one)
        if self._waiting is None:
            one.unwatch()
        else:
            self._tell(size_bytes, must_answer=must_answer)

    def _tell(self, size_bytes: int, *, must_answer: bool) -> None:
        if self._waiting is not None:
            self._waiting(size_bytes, must_answer)

    def close(self) -> None:
        """End the session; a waiting fetch is answered."""
        self._closed = True
        for one in self._partitions.values():
            one.unwatch()
        self._tell(0, must_answer=True)


def next_epoch(epoch: int) -> int:
    """Return the session epoch after this one. It wraps to 1, because 0 starts a session."""
    return FIRST_INCREMENTAL_EPOCH if epoch >= EPOCH_MAX else epoch + 1
