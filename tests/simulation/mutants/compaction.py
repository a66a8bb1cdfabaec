"""Planted bugs of compaction, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.leased_task import LeasedTask
from ponor_controller.domains.compaction import duty as compaction_duty
from ponor_controller.domains.compaction import operations as compaction
from ponor_controller.domains.compaction import operations as compaction_operations
from ponor_controller.domains.objects import operations as objects
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.nouns.compactions import COMPACTIONS, CompactionRow
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.objects import ObjectRow
from s3stream.compaction import copy_planning, iterations, plan, planning
from s3stream.compaction.movement import PartUploads
from s3stream.compaction.sources import SourceBlock, live_blocks
from s3stream.objects.format import BlockEntry

from tests.simulation.mutants.mutant import Catch, Mutant, Patch, Patches, Suite, method, used_in

_due_objects = objects._due_objects
_encoded_index = plan.encoded_index
_granted = LeasedTask.granted


def held_by_number(task_id: int, _: int, situation: Situation) -> CompactionRow | None:
    """`compaction._held`."""
    return situation.view[COMPACTIONS].get(task_id)


def compacted_due_at_once(situation: Situation) -> Iterator[ObjectRow]:
    """`objects._due_objects`."""
    is_compacted = any(row.role is NodeRole.COMPACTOR for row in situation.view[NODES])
    delay_ms = 0 if is_compacted else situation.settings.destroy_delay_ms
    return _due_objects(replace(situation, settings=replace(situation.settings, destroy_delay_ms=delay_ms)))


async def abort_nothing(_: PartUploads) -> None:
    """`PartUploads.abort`."""


def index_with_shifted_timestamps(entries: Iterable[BlockEntry], *limits: Any) -> bytes:
    """`plan.encoded_index`."""
    right = list(entries)
    wrong = [entry._replace(max_timestamp_ms=before.max_timestamp_ms) for before, entry in pairwise(right)]
    return _encoded_index([*right[:1], *wrong], *limits)


def live_blocks_but_the_last(*args: Any) -> Sequence[SourceBlock]:
    """`sources.live_blocks`."""
    found = live_blocks(*args)
    return found[:-1] if len(found) > 4 else found


def plans_from_stale_metadata() -> Patches:
    """A worker plans with the streams of the answer before."""
    heard: set[int] = set()

    def granted_late(answer: wire.CompactionGranted) -> LeasedTask:
        stale = wire.CompactionGranted()
        stale.CopyFrom(answer)
        del stale.streams[:]
        stale.streams.extend(each for each in answer.streams if each.stream_id in heard or not heard)
        heard.update(each.stream_id for each in answer.streams)
        return _granted(stale)

    return (
        Patch(LeasedTask, "granted", staticmethod(granted_late)),
        Patch(compaction, "find_difference", lambda *_, **__: None),
    )


COMPACTION_MUTANTS: Final = (
    Mutant(
        "compaction_committed_twice",
        "A commit names a task by its number only, so a worker commits after its lease was given to another.",
        used_in("_held", held_by_number, compaction_operations),
        (Catch(Suite.SWARM, r"invariant 35", 152),),
    ),
    Mutant(
        "compaction_ignores_retention",
        "Replaced objects may be deleted at once, while readers with an older image still need them.",
        used_in("_due_objects", compacted_due_at_once, objects),
        (Catch(Suite.SWARM, r"invariant 24", 0),),
    ),
    Mutant(
        "compaction_keeps_uploads_open",
        "A compaction that fails does not abort its multipart uploads.",
        (method(PartUploads.abort, abort_nothing),),
    ),
    Mutant(
        "compaction_misdates_blocks",
        "In a compacted index each block has the newest timestamp of the block before it.",
        used_in("encoded_index", index_with_shifted_timestamps, plan, iterations, copy_planning),
        (Catch(Suite.SWARM, r"invariant 26", 0),),
    ),
    Mutant(
        "compaction_never_given_back",
        "A task whose worker is gone is never leased to another one.",
        used_in("is_vacant", lambda *_: False, compaction_operations, compaction_duty),
        (Catch(Suite.SWARM, r"invariant 38", 11),),
    ),
    Mutant(
        "compaction_plans_from_stale_metadata",
        "A worker plans with an older list of streams, and the controller does not compare the plan.",
        plans_from_stale_metadata,
        (Catch(Suite.SWARM, r"invariant 26", 0),),
    ),
    Mutant(
        "compaction_without_coverage",
        "Outputs replace sources without a coverage check, and a worker sometimes drops a block.",
        (
            *used_in("find_difference", lambda *_, **__: None, compaction_operations),
            *used_in("live_blocks", live_blocks_but_the_last, planning, copy_planning),
        ),
        (Catch(Suite.SWARM, r"invariant 26", 0),),
    ),
)
