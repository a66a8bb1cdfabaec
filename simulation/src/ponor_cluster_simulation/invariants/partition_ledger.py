"""The ledger of partitions: invariant 30, and the part of invariant 39 that records show.

`protocols.committed_steps` checks that elections and moves follow the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor.metadata.v1 import records_pb2 as records

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.invariants.stream_ledger import Place, StreamLedger


@dataclass(slots=True)
class PartitionPage:
    """What is known of a partition.

    Attributes:
        leader, leader_epoch: the current leader.
        owners: leader epoch to the node that opened a stream of the partition at this epoch.
        streams: all its streams.
    """

    leader: int = -1
    leader_epoch: int = -1
    owners: dict[int, int] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)


class PartitionLedger:
    """The ledger of partitions.

    Attributes:
        moves_begun, moves_cancelled, elections: number of each; an election is a change of the leader.
    """

    def __init__(self, checks: Checks, streams: StreamLedger) -> None:
        self._checks = checks
        self._streams = streams
        self._pages: dict[tuple[bytes, int], PartitionPage] = {}
        self._names: dict[int, tuple[bytes, int]] = {}
        self._topics: set[bytes] = set()
        self.moves_begun = 0
        self.moves_cancelled = 0
        self.elections = 0

    def topic_created(self, record: records.TopicCreated, _: Place) -> None:
        """Record a topic."""
        self._topics.add(record.topic_id)

    def topic_deleted(self, record: records.TopicDeleted, _: Place) -> None:
        """Remove a topic and its partitions."""
        self._topics.discard(record.topic_id)
        for key in [key for key in self._pages if key[0] == record.topic_id]:
            # A broker drops the data of a deleted topic at once. Later batches delete its streams.
            self._streams.abandoned.update(self._pages.pop(key).streams)

    def key_put(self, record: records.KeyPut, _place: Place) -> None:
        """Check a key, which may belong to a partition."""
        kind, _, rest = record.key.partition("/")
        if kind == "partition":
            topic, _, number = rest.partition("/")
            self._require_present((bytes.fromhex(topic), int(number)), f"key {record.key}")

    def partition_changed(self, record: records.PartitionChanged, _: Place) -> None:
        """Check a leader and its epoch."""
        page = self._page((record.topic_id, record.partition))
        is_same = (record.leader_id, record.leader_epoch) == (page.leader, page.leader_epoch)
        rises = record.leader_epoch > page.leader_epoch
        self._checks.require(
            30,
            is_same or rises,
            f"partition {record.partition} of {record.topic_id.hex()}: leader epoch {record.leader_epoch} of"
            f" node {record.leader_id} follows epoch {page.leader_epoch} of node {page.leader}",
        )
        self.elections += page.leader not in {-1, record.leader_id}
        page.leader, page.leader_epoch = record.leader_id, record.leader_epoch

    def partition_move_begun(self, _record: records.PartitionMoveBegun, _: Place) -> None:
        """Count a move."""
        self.moves_begun += 1

    def partition_move_cancelled(self, _record: records.PartitionMoveCancelled, _: Place) -> None:
        """Count a cancelled move."""
        self.moves_cancelled += 1

    def stream_created(self, record: records.StreamCreated, _: Place) -> None:
        """Check a stream, which may belong to a partition."""
        if "topic" in record.tags and "partition" in record.tags:
            key = (bytes.fromhex(record.tags["topic"]), int(record.tags["partition"]))
            self._require_present(key, f"stream {record.stream_id}")
            self._names[record.stream_id] = key
            self._page(key).streams.append(record.stream_id)

    def stream_opened(self, record: records.StreamOpened, _: Place) -> None:
        """Check that the leader opens the streams of the partition."""
        key = self._names.get(record.stream_id)
        if key is None:
            return
        page = self._page(key)
        name = f"partition {key[1]} of {key[0].hex()}"
        self._checks.require(
            30,
            (page.leader, page.leader_epoch) == (record.node_id, record.stream_epoch),
            f"{name}: node {record.node_id} opened stream {record.stream_id} at epoch {record.stream_epoch},"
            f" but node {page.leader} leads at epoch {page.leader_epoch}",
        )
        owner = page.owners.setdefault(record.stream_epoch, record.node_id)
        self._checks.require(
            30,
            owner == record.node_id,
            f"{name}: nodes {owner} and {record.node_id} both owned the partition at epoch"
            f" {record.stream_epoch}",
        )
        for number in page.streams:
            stream = self._streams.streams.get(number)
            if stream is not None and stream.owner is not None:
                self._checks.require(
                    30,
                    stream.owner.node_id == record.node_id,
                    f"{name}: node {record.node_id} owns stream {record.stream_id}, but node"
                    f" {stream.owner.node_id} owns stream {number}",
                )

    def _require_present(self, key: tuple[bytes, int], what: str) -> None:
        is_present = key[0] in self._topics and key in self._pages
        self._checks.require(
            39,
            is_present,
            f"{what} was created for partition {key[1]} of topic {key[0].hex()}, which does not exist",
        )

    def _page(self, key: tuple[bytes, int]) -> PartitionPage:
        return self._pages.setdefault(key, PartitionPage())
