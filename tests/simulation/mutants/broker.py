"""Replacements for the mutants of brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_walk import FetchWalk
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_runtime.health import Health
from ponor_simulation.loop import INCARNATION
from s3stream.ports import StreamState
from s3stream.stream import Stream

from tests.simulation.mutants.mutant import Patch, Patches

_known = ProducerStates._known
_rest = ProducerStates.rest
_change_at = ProducerStates.change_at
_advance_start = DurableState.advance_start
_goes_on = HandoffTarget._goes_on
_resume = FetchHandler._resume


# Producers that rested and were used again are left out of the next change of the snapshot.


def known_and_noted(self: ProducerStates, producer_id: int) -> ProducerEntry | None:
    """`ProducerStates._known`."""
    if producer_id in self._resting:
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
