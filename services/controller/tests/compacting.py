"""Workers on a ledger: they lease tasks, read the sources' ranges from an image, and commit outputs
of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction.coverage import live
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import CompactionSettings, ControllerSettings
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.tables.ranges import join_interpreted
from ponor_runtime.identity import StreamId

from services.controller.tests.ledger import Ledger

Run: TypeAlias = tuple[int, int, int]
COMPACTOR = records_pb2.NODE_ROLE_COMPACTOR
Outcome = wire.CompactionOutcome
DONE, SOURCE_GONE = Outcome.RESULT_DONE, Outcome.RESULT_SOURCE_GONE
STALE_PLAN, FENCED = Outcome.RESULT_STALE_PLAN, Outcome.RESULT_FENCED
EAGER = CompactionSettings(
    compaction_settle_ms=0,
    compaction_patience_ms=0,
    compaction_fan_in=2,
    compaction_force_split_ms=1 << 40,
)
"""Settings with which everything is compacted immediately."""


def eager_ledger(compaction: CompactionSettings = EAGER) -> Ledger:
    return Ledger(settings=ControllerSettings(compaction=compaction, destroy_delay_ms=0))


@dataclass
class Worker:
    """One process of a compactor."""

    ledger: Ledger
    number: int = 500

    def __post_init__(self) -> None:
        self.caller: Caller = self.ledger.register(self.number, role=COMPACTOR)

    def ask(self, *, ttl_ms: int = 60_000, source_bytes_max: int = 1 << 40) -> wire.OperationResult:
        body = wire.LeaseCompaction(ttl_ms=ttl_ms, source_bytes_max=source_bytes_max)
        return self.ledger.do(self.caller, lease_compaction=body)

    def lease(self, *, ttl_ms: int = 60_000, source_bytes_max: int = 1 << 40) -> wire.CompactionGranted:
        result = self.ask(ttl_ms=ttl_ms, source_bytes_max=source_bytes_max)
        assert result.WhichOneof("outcome") == "compaction_granted"
        return result.compaction_granted

    def finds_nothing(self, *, ttl_ms: int = 60_000, source_bytes_max: int = 1 << 40) -> bool:
        return self.ask(ttl_ms=ttl_ms, source_bytes_max=source_bytes_max).WhichOneof("outcome") == "done"

    def held_runs(self, task: wire.CompactionGranted) -> list[Run]:
        """Live ranges of the sources, as in the task."""
        starts = {each.stream_id: each.start_offset for each in task.streams}
        pieces: list[Run] = []
        for source in task.sources:
            single = self.ledger.image[STREAM_OBJECTS].get(source.object_id)  # type: ignore[arg-type]
            if single is not None:
                pieces.append((single.stream_id, single.start_offset, single.end_offset))
                continue
            for each in self.ledger.set_object(source.object_id).ranges.decoded:
                pieces.append((each.stream_id, each.start_offset, each.end_offset))
        return live(join_interpreted(pieces), starts.get)

    def body(
        self, task: wire.CompactionGranted, together: Sequence[Run], apart: Sequence[Run]
    ) -> wire.CommitCompaction:
        ids = iter(
            self.ledger.prepare(self.caller, (1 if together else 0) + len(apart)) if together or apart else []
        )
        body = wire.CommitCompaction(task_id=task.task_id, token=task.token, planned_index=task.planned_index)
        if together:
            body.stream_set_object.object_id = next(ids)
            body.stream_set_object.size_bytes = 4_000
            body.stream_set_object.ranges.extend(map(_range, together))
        for run in apart:
            body.stream_objects.add(object_id=next(ids), size_bytes=2_000, range=_range(run))
        return body

    def plan(self, task: wire.CompactionGranted, *, split: bool = False) -> wire.CommitCompaction:
        """Put all runs into one set object, or each into its own object."""
        runs = self.held_runs(task)
        split = split or task.kind != records_pb2.COMPACTION_KIND_SET_OBJECTS
        return self.body(task, [] if split else runs, runs if split else [])

    def commit(self, body: wire.CommitCompaction) -> Outcome.Result.ValueType:
        return self.ledger.do(self.caller, commit_compaction=body).compaction_outcome.result

    def renew(self, task: wire.CompactionGranted, ttl_ms: int = 60_000) -> Outcome.Result.ValueType:
        body = wire.RenewCompaction(task_id=task.task_id, token=task.token, ttl_ms=ttl_ms)
        return self.ledger.do(self.caller, renew_compaction=body).compaction_outcome.result

    def end(self, task: wire.CompactionGranted) -> None:
        body = wire.EndCompaction(task_id=task.task_id, token=task.token, reason="enough")
        self.ledger.do(self.caller, end_compaction=body)


def require_all_found(ledger: Ledger) -> None:
    """Check that every committed offset of every stream is found, and that the image is valid."""
    validate(ledger.image)
    for row in ledger.image[STREAMS]:
        offset = row.start_offset
        for piece in find_pieces(ledger.image, StreamId(row.stream_id), offset, row.end_offset, limit=10_000):
            assert piece.start_offset == offset
            offset = piece.end_offset
        assert offset == row.end_offset


def _range(run: Run) -> wire.UploadedRange:
    return wire.UploadedRange(stream_id=run[0], start_offset=run[1], end_offset=run[2])
