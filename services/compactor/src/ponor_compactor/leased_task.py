"""Compaction task as granted by the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.nouns.compactions import CompactionKind
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.compaction.sources import ObjectLocation
from s3stream.ports import StreamState


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """The sources to replace, and the token that identifies the lease.

    Attributes:
        streams: the existing streams as of `planned_index`; the compaction drops data of other streams.
    """

    task_id: int
    token: int
    kind: CompactionKind
    sources: tuple[ObjectLocation, ...]
    streams: Mapping[StreamId, StreamState]
    planned_index: int

    @staticmethod
    def granted(answer: wire.CompactionGranted) -> LeasedTask:
        """Build a task from the controller's answer."""
        sources = tuple(
            ObjectLocation(ObjectId(each.object_id), each.namespace, each.bucket_index, each.size_bytes)
            for each in answer.sources
        )
        streams = {StreamId(each.stream_id): _state(each) for each in answer.streams}
        return LeasedTask(
            answer.task_id, answer.token, CompactionKind(answer.kind), sources, streams, answer.planned_index
        )

    @property
    def source_bytes(self) -> int:
        """Return the total size of the sources in bytes."""
        return sum(each.size_bytes for each in self.sources)

    def __str__(self) -> str:
        return (
            f"compaction {self.task_id}.{self.token} ({self.kind.name.lower()}, {len(self.sources)}"
            f" objects, {self.source_bytes} bytes)"
        )


def _state(each: wire.StreamState) -> StreamState:
    return StreamState(
        StreamId(each.stream_id), StreamEpoch(each.stream_epoch), each.start_offset, each.end_offset
    )
