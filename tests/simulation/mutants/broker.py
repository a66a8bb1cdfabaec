"""Planted bugs of brokers, and their replacements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ponor_broker import node
from ponor_broker.coordination.shards import Shards
from ponor_broker.handlers.fetch.fetch import FetchHandler
from ponor_broker.handlers.fetch.fetch_session import FetchSession
from ponor_broker.partitions.handoff.handoff_target import HandoffTarget
from ponor_broker.partitions.handoff.opening import Opening
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.service_state import ServiceState
from ponor_broker.partitions.state.durable_state import DurableState
from ponor_broker.partitions.state.producer_entry import ProducerEntry, join_rows, split_rows
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.serving import Serving
from ponor_controller.domains.streams import operations as streams
from ponor_controller.domains.topics import keys
from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_walk import FetchWalk
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_runtime.health import Health
from ponor_simulation.loop import INCARNATION
from s3stream.ports import StreamState
from s3stream.stream import Stream

from tests.simulation.mutants.mutant import Catch, Mutant, Patch, Patches, Suite, method, used_in

_known = ProducerStates._known
_rest = ProducerStates.rest
_change_at = ProducerStates.change_at
_advance_start = DurableState.advance_start
_goes_on = HandoffTarget._goes_on
_resume = FetchHandler._resume


# Producers that rested and were used again are left out of the next change of the snapshot.


def known_and_noted(self: ProducerStates, producer_id: int) -> ProducerEntry | None:
    """`ProducerStates._known`."""
    if producer_id in self._idle_rows:
        self.__dict__.setdefault("_rested_before", set()).add(producer_id)
    return _known(self, producer_id)


def rest_without_noted(self: ProducerStates, limit: int = 500) -> bool:
    """`ProducerStates.rest`."""
    more = _rest(self, limit)
    rested = self.__dict__.get("_rested_before", set())
    self._unwritten = [row for row in self._unwritten if int.from_bytes(row[:8], "big") not in rested]
    return more


def change_without_confirmed(self: ProducerStates, offset: int) -> bytes:
    """`ProducerStates.change_at`."""
    left_out = self.__dict__.get("_was_in_flight", set())
    self.__dict__["_was_in_flight"] = {undo.producer_id for undo in self._in_flight or ()}
    _, rows = split_rows(_change_at(self, offset))
    return join_rows(offset, [row for producer_id, row in rows if producer_id not in left_out])


def advance_start_at_once(
    self: DurableState, start_offset: int, confirmed_offset: int
) -> asyncio.Future[None]:
    """`DurableState.advance_start`."""
    _advance_start(self, start_offset, confirmed_offset).add_done_callback(lambda done: done.exception())
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answered.set_result(None)
    return answered


# A partition that moves continues to accept appends.


def seal_without_refusal(self: ServiceState) -> None:
    """`ServiceState.seal`."""
    self.is_sealed = True


def hold_reads_only(self: ServiceState) -> None:
    """`ServiceState.hold`."""
    self.is_held = self.refuses_reads = True


def end_at_committed(self: Stream) -> StreamState:
    """`Stream.end`."""
    state = self._state
    return StreamState(state.stream_id, state.epoch, state.start_offset, state.committed_offset)


def watermark_of_before() -> Patches:
    """The high watermark stays what the broker returned under its earlier leader epoch."""
    told: dict[tuple[object, object, int], tuple[int, int]] = {}

    def high_watermark(self: Partition) -> int:
        life, now = INCARNATION.get(), self.log.confirmed_offset
        name = (life, self.identity.topic_id, self.identity.index)
        epoch, known = told.get(name, (self.leader_epoch, now))
        if epoch < self.leader_epoch and self.log.end_offset == now and now > known:
            return known
        told[name] = (self.leader_epoch, now)
        return now

    return (Patch(Partition, "high_watermark", property(high_watermark)),)


def continue_without_failures_only(self: HandoffTarget, opening: Opening) -> bool:
    """`HandoffTarget._goes_on`."""
    return opening.failures == 0 and _goes_on(self, opening)


async def delete_no_streams(_: OwnedStreams, partitions: Sequence[Partition]) -> Sequence[Partition]:
    """`OwnedStreams.delete_unknown`."""
    return partitions[:0]


def resume_without_permission(
    self: FetchHandler, walk: FetchWalk, version: int
) -> FetchSession | ErrorCode | None:
    """`FetchHandler._resume`."""
    session = self._sessions.find(walk.session_id)
    if session is not None:
        session.serving_epoch = self._serving.epoch
    return _resume(self, walk, version)


def require_any_image(health: Health, subscription: SubscriptionClient) -> None:
    """`node.require_current_image`."""
    health.require("metadata", lambda: "" if subscription.staleness_ms is not None else "never")


BROKER_MUTANTS: Final = (
    Mutant(
        "broker_change_forgets_producers",
        "A change of the producer snapshot omits producers that rested and were used again.",
        (
            method(ProducerStates._known, known_and_noted),
            method(ProducerStates.rest, rest_without_noted),
        ),
        (Catch(Suite.CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0),),
    ),
    Mutant(
        "broker_duplicate_before_durable",
        "A repeated batch is acknowledged while its first append is still being written.",
        (method(Partition._report_first, lambda _self, _offset, on_settled: on_settled(None)),),
        (Catch(Suite.CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0),),
    ),
    Mutant(
        "broker_forgets_producers",
        "Producer state is not stored, so a restart finds only producers with batches that are not uploaded.",
        (method(ProducerStates.restoring, lambda *_: iter(())),),
        (Catch(Suite.CLUSTER, "was acknowledged at", 1),),
    ),
    Mutant(
        "broker_snapshot_forgets_confirmed",
        "A snapshot omits producers that had a batch in flight at the previous snapshot.",
        (method(ProducerStates.change_at, change_without_confirmed),),
        (Catch(Suite.CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER|was acknowledged at", 2),),
    ),
    Mutant(
        "broker_forgets_refusals",
        "A refused batch is forgotten, so the next one counts as the producer's first.",
        (method(RefusedSequences.note, lambda *_: None),),
    ),
    Mutant(
        "broker_start_before_durable",
        "DeleteRecords is answered before the new log start is durable.",
        (method(DurableState.advance_start, advance_start_at_once),),
    ),
    Mutant(
        "move_appends_after_close",
        "A moving partition continues to accept appends while its streams are closed.",
        (
            method(ServiceState.seal, seal_without_refusal),
            method(ServiceState.hold, hold_reads_only),
            method(Stream.end, end_at_committed),
            method(Stream.refuse_appends, lambda _: None),
        ),
    ),
    Mutant(
        "move_watermark_of_before",
        "A broker that gets a partition back returns its earlier high watermark until the next append.",
        watermark_of_before,
        (Catch(Suite.SWARM, r"the high watermark of \d+ fell", 42),),
    ),
    Mutant(
        "open_for_absent_topics",
        "Streams and keys are created for partitions that do not exist.",
        (
            *used_in("require_tagged_rights", lambda *_: None, streams),
            *used_in("require_key_rights", lambda *_: None, keys),
        ),
        (Catch(Suite.SWARM, r"invariant 39", 21),),
    ),
    Mutant(
        "open_forgets_after_refusal",
        "A partition is not opened again after its first open was refused.",
        (method(HandoffTarget._goes_on, continue_without_failures_only),),
    ),
    Mutant(
        "open_keeps_unknown_streams",
        "Streams that an opening attempt created and no log metadata names are never deleted.",
        (method(OwnedStreams.delete_unknown, delete_no_streams),),
    ),
    Mutant(
        "permission_never_withdrawn",
        "A broker that has lost contact with the controllers continues to answer.",
        (method(Serving.check, lambda _: None),),
        (Catch(Suite.SWARM, r"invariant 40", 276),),
    ),
    Mutant(
        "permission_not_asked_by_groups",
        "The group coordinator answers from memory without a serving lease.",
        (Patch(Shards, "refusal", None),),
    ),
    Mutant(
        "permission_not_asked_by_sessions",
        "A fetch session is answered from remembered partitions without a serving lease.",
        (method(FetchHandler._resume, resume_without_permission),),
        (Catch(Suite.SWARM, r"invariant 40", 438),),
    ),
    Mutant(
        "readiness_ignores_currency",
        "A broker reports ready although it has received no commit for a long time.",
        used_in("require_current_image", require_any_image, node),
    ),
)
