"""A ledger on which operations are validated and applied without log, disk or network, for tests of
validators.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction.garbage_ratio import GarbageRatio
from ponor_controller.domains.compaction.offering import Offering
from ponor_controller.domains.compaction.survey import Survey
from ponor_controller.domains.nodes.registration import assign_recovery, register_node
from ponor_controller.domains.objects.reclaim_duty import PAUSE_S, ReclaimDuty
from ponor_controller.domains.quorum.first_records import format_records
from ponor_controller.kernel.decisions import Decision, Situation
from ponor_controller.kernel.operation import Caller
from ponor_controller.operations import validator_of_all
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectRow, StreamSetObjectRow
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS, StreamObjectRow, StreamRow
from ponor_metadata.nouns.wals import WALS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ClusterOrdinal, NodeEpoch, NodeId, ObjectId, StreamId, compose_node_id
from ponor_runtime.telemetry import Telemetry

ORDINAL = ClusterOrdinal(7)
UploadRange: TypeAlias = tuple[int, int, int, int]
"""Stream id, stream epoch, start offset, end offset."""
RECLAIM_BATCHES_MAX = 10_000
CLUSTER_ID = "11111111-2222-3333-4444-555555555555"


class CountingRandomness:
    """Deterministic randomness: every token and UUID is the next number."""

    def __init__(self) -> None:
        self._next = 100

    def uniform(self, low: float, high: float) -> float:
        return low

    def below(self, bound: int) -> int:
        return 0

    def token(self, length: int) -> bytes:
        self._next += 1
        return self._next.to_bytes(length, "big")

    def uuid(self) -> uuid.UUID:
        self._next += 1
        return uuid.UUID(int=self._next << 64 | self._next, version=4)


class StandingClock:
    """A stopped clock that only supports `monotonic_ns`."""

    def monotonic_ns(self) -> int:
        return 1


class _NoLeading:
    """Leadership that never changes."""

    def on_change(self, listener: Callable[[], None]) -> None:
        pass


@dataclass
class _LedgerProposer:
    """The proposer's interface for duties."""

    ledger: Ledger

    @property
    def view(self) -> Overlay:
        return self.ledger.view

    def now_ms(self) -> int:
        return self.ledger.now_ms

    def propose(self, records: list[records_pb2.Record]) -> int:
        self.ledger.apply(records)
        return self.ledger.view.index


@dataclass
class Ledger:
    """Validates operations as the leader does and commits each batch immediately (`hold` keeps them
    uncommitted).
    """

    settings: ControllerSettings = field(default_factory=ControllerSettings)
    randomness: CountingRandomness = field(default_factory=CountingRandomness)
    now_ms: int = 1_000
    suspected: tuple[NodeId, ...] = ()
    hold: bool = False

    def __post_init__(self) -> None:
        self.image = MetadataImage()
        self.view = Overlay(self.image)
        self.survey = Survey(self.image, self.settings.compaction)
        self.garbage_ratio = GarbageRatio(self.image, self.settings.compaction)
        self.compactions = Offering(self.image, self.survey, self.garbage_ratio, self.settings.compaction)
        self.apply(format_records(CLUSTER_ID, ORDINAL, self.randomness))

    def apply(self, records: list[records_pb2.Record]) -> None:
        if not records:
            return
        batch = records_pb2.RecordBatch(
            index=self.view.index + 1, term=1, cluster_time_ms=self.now_ms, records=records
        )
        self.view.propose(batch)
        if not self.hold:
            self.commit()

    def commit(self) -> None:
        self.view.commit(self.view.index)

    def reclaim(self) -> int:
        """Run the reclaim duty until nothing is left; return the number of batches."""
        duty = new_reclaim_duty(self)
        before = self.view.index
        while duty.step() == PAUSE_S:
            assert self.view.index - before < RECLAIM_BATCHES_MAX, "reclaiming does not end"
        return self.view.index - before

    def register(
        self,
        number: int = 0,
        role: records_pb2.NodeRole.ValueType = records_pb2.NODE_ROLE_BROKER,
        incarnation: bytes | None = None,
        wal: WalKind = WalKind.FILE,
    ) -> Caller:
        node_id = compose_node_id(ORDINAL, number)
        hello = wire.Hello(
            node_id=node_id,
            role=role,
            incarnation=incarnation or self.randomness.token(16),
            kafka_host="localhost",
            kafka_port=9092,
            wal=records_pb2.WalKind.ValueType(wal),
        )
        registration = register_node(hello, self.view, self.now_ms)
        self.apply(registration.records)
        while registration.raised is not None:
            registration = register_node(hello, self.view, self.now_ms, registration.raised)
            self.apply(registration.records)
        return Caller(node_id, NodeEpoch(registration.node_epoch), role)

    def fence(self, caller: Caller) -> None:
        """Fence the process, as failover does."""
        fenced = records_pb2.NodeFenced(node_id=caller.node_id, node_epoch=caller.node_epoch)
        self.apply([records_pb2.Record(node_fenced=fenced)])

    def assign(self, owner: Caller, recoverer: Caller) -> wire.WalName:
        """Assign the recovery of the owner's log; return the log's name."""
        row = self.image[WALS].get((owner.node_id, owner.node_epoch))
        assert row is not None
        self.apply([assign_recovery(row, recoverer.node_id, recoverer.node_epoch)])
        return wal_name(owner)

    def decide(self, caller: Caller, **kind: Any) -> list[records_pb2.Record]:
        return self._validate(caller, **kind).records

    def do(self, caller: Caller, **kind: Any) -> wire.OperationResult:
        """Validate and apply an operation; return the answer."""
        decision = self._validate(caller, **kind)
        self.apply([*decision.records, *decision.closing_records])
        return decision.result

    def refusal(self, caller: Caller, **kind: Any) -> str:
        """Return the code with which an operation is refused; it must change nothing."""
        before = (self.view.index, self.image.digest)
        with pytest.raises(OperationError) as refused:
            self.do(caller, **kind)
        assert (self.view.index, self.image.digest) == before
        assert refused.value.message
        return error_pb2.ErrorCode.Name(refused.value.code).removeprefix("ERROR_CODE_")

    def _validate(self, caller: Caller, **kind: Any) -> Decision:
        operation = wire.Operation(**kind)
        return validator_of_all(self.compactions)(
            operation, self._situation(caller), operation.WhichOneof("kind")
        )

    def _situation(self, caller: Caller) -> Situation:
        return Situation(
            caller=caller,
            now_ms=self.now_ms,
            view=self.view,
            settings=self.settings,
            randomness=self.randomness,
            is_suspected=lambda node_id: node_id in self.suspected,
        )

    # Rows that must exist.

    def stream(self, stream_id: int) -> StreamRow:
        row = self.image[STREAMS].get(StreamId(stream_id))
        assert row is not None
        return row

    def object(self, object_id: int) -> ObjectRow:
        row = self.image[OBJECTS].get(ObjectId(object_id))
        assert row is not None
        return row

    def stream_object(self, object_id: int) -> StreamObjectRow:
        row = self.image[STREAM_OBJECTS].get(ObjectId(object_id))
        assert row is not None
        return row

    def set_object(self, object_id: int) -> StreamSetObjectRow:
        row = self.image[STREAM_SET_OBJECTS].get(ObjectId(object_id))
        assert row is not None
        return row

    # Frequent operations.

    def create_streams(self, caller: Caller, count: int = 1, **tags: str) -> list[int]:
        body = wire.CreateStreams(streams=[wire.StreamTags(tags=tags)] * count)
        return list(self.do(caller, create_streams=body).streams_created.stream_ids)

    def open(self, caller: Caller, stream_id: int, epoch: int) -> wire.StreamState:
        body = wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=epoch)])
        return self.do(caller, open_streams=body).streams_opened.streams[0]

    def prepare(self, caller: Caller, count: int = 1, ttl_ms: int = 60_000) -> list[int]:
        reserved = self.do(
            caller, prepare_objects=wire.PrepareObjects(count=count, ttl_ms=ttl_ms)
        ).objects_reserved
        return list(range(reserved.first_object_id, reserved.first_object_id + reserved.count))

    def upload(
        self,
        caller: Caller,
        set_ranges: Sequence[UploadRange] = (),
        stream_objects: Sequence[UploadRange] = (),
    ) -> list[int]:
        """Prepare and commit; ranges are (stream, epoch, start, end). Return the ids of the set
        object (if any) and of the stream objects.
        """
        ids = self.prepare(caller, (1 if set_ranges else 0) + len(stream_objects))
        self.do(caller, commit_upload=upload_body(ids, set_ranges, stream_objects))
        return ids


def new_reclaim_duty(ledger: Ledger) -> ReclaimDuty:
    """The reclaim duty as run by a new leader."""
    proposer: Any = _LedgerProposer(ledger)
    return ReclaimDuty(proposer, _NoLeading(), StandingClock(), Telemetry())  # type: ignore[arg-type]


def upload_body(
    ids: list[int],
    set_ranges: Sequence[UploadRange] = (),
    stream_objects: Sequence[UploadRange] = (),
) -> wire.CommitUpload:
    """The body of an upload commit of prepared ids."""
    rest = iter(ids)
    body = wire.CommitUpload()
    if set_ranges:
        body.stream_set_object.object_id = next(rest)
        body.stream_set_object.size_bytes = 1_000
        body.stream_set_object.ranges.extend(map(_range, set_ranges))
    for each in stream_objects:
        body.stream_objects.add(object_id=next(rest), size_bytes=500, range=_range(each))
    return body


def wal_name(owner: Caller) -> wire.WalName:
    """The log of a process."""
    return wire.WalName(node_id=owner.node_id, wal_epoch=owner.node_epoch)


def _range(each: UploadRange) -> wire.UploadedRange:
    stream_id, epoch, start, end = each
    return wire.UploadedRange(stream_id=stream_id, stream_epoch=epoch, start_offset=start, end_offset=end)
