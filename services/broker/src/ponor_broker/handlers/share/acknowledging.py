"""The acknowledgements of one request, and the checks that ShareFetch and ShareAcknowledge have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ponor_kafka.errors import ErrorCode
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import in_turns, turn

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.topics.announcements import LeaderHint, leader_hint
from ponor_broker.share_partitions.acknowledgement import (
    AcknowledgedBatch,
    AcknowledgementError,
    AcknowledgeType,
    check_form,
)
from ponor_broker.share_partitions.led_partitions import LedSharePartitions
from ponor_broker.share_partitions.sessions import ShareSessionError, ShareSessionKey
from ponor_broker.share_partitions.settings import GroupRules

MEMBER_ID_CHARS_MAX: Final = 36
ACKNOWLEDGED_RANGES_MAX: Final = 100_000
"""Batches and types of one request: more are not acquired by one member."""
PARTITION_RANGES_MAX: Final = 20_000
"""Batches and types for one partition: a batch and a type for each of the most records in flight."""
RANGES_PER_TURN: Final = 1_000
"""Batches and types of one request that are applied in one turn of the event loop."""
ROW_RANGES: Final = 5
"""What a partition costs of a turn without its batches and types."""


class AcknowledgementBatch(Protocol):
    """A batch of either request."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


class Outcome(NamedTuple):
    """Result of the acknowledgements for one partition. `hint` names the leader if another broker leads."""

    code: ErrorCode
    message: str | None = None
    hint: LeaderHint | None = None


class Begun(NamedTuple):
    """The acknowledgements of a request that were applied, and those that were refused."""

    refused: Mapping[PartitionKey, Outcome]
    waiting: Mapping[PartitionKey, Sequence[asyncio.Future[ErrorCode]]]


def member_of(group_id: str | None, member_id: str | None) -> ShareSessionKey:
    """Return the member that a request names.

    Raises:
        ShareSessionError: INVALID_REQUEST.
    """
    if not group_id:
        raise ShareSessionError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MEMBER_ID_CHARS_MAX:
        raise ShareSessionError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return ShareSessionKey(group_id, member_id)


class Acknowledging:
    """Applies the acknowledgements of requests."""

    def __init__(
        self, partitions: PartitionManager, shares: LedSharePartitions, telemetry: Telemetry
    ) -> None:
        self._partitions = partitions
        self._shares = shares
        self._applied = telemetry.counter("ponor_share_acknowledgements_total", result="applied")
        self._refused = telemetry.counter("ponor_share_acknowledgements_total", result="refused")

    async def begin(
        self,
        member: ShareSessionKey,
        rows: Mapping[PartitionKey, Sequence[AcknowledgementBatch]],
        rules: GroupRules,
        *,
        has_renewals: bool,
    ) -> Begun:
        """Apply all acknowledgements, many of them in turns. `finish` waits until they are durable."""
        outcomes: dict[PartitionKey, Outcome] = {}
        waiting: dict[PartitionKey, Sequence[asyncio.Future[ErrorCode]]] = {}
        ranges = 0
        for key, batches in rows.items():
            if ranges >= RANGES_PER_TURN:
                await turn()
                ranges = 0
            ranges += ROW_RANGES + ranges_of(batches)
            outcome = await self._apply(member, key, batches, rules, has_renewals=has_renewals)
            if isinstance(outcome, Outcome):
                outcomes[key] = outcome
                self._refused.add(len(batches))
            else:
                waiting[key] = outcome
                self._applied.add(len(batches))
        return Begun(outcomes, waiting)

    async def finish(self, begun: Begun) -> dict[PartitionKey, Outcome]:
        """Return when the acknowledgements are durable, with the outcome of each partition."""
        outcomes = dict(begun.refused)
        for key, answers in begun.waiting.items():
            codes = [await answer for answer in answers]
            outcomes[key] = Outcome(
                next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)
            )
        return outcomes

    async def _apply(
        self,
        member: ShareSessionKey,
        key: PartitionKey,
        batches: Sequence[AcknowledgementBatch],
        rules: GroupRules,
        *,
        has_renewals: bool,
    ) -> Sequence[asyncio.Future[ErrorCode]] | Outcome:
        rows = [
            AcknowledgedBatch(row.first_offset, row.last_offset, row.acknowledge_types) for row in batches
        ]
        try:
            check_form(rows, has_renewals=has_renewals)
            if has_renewals and not rules.may_renew and _renews(rows):
                raise AcknowledgementError(
                    ErrorCode.INVALID_REQUEST, "Renewing acquisition locks is not enabled for the group."
                )
            self._partitions.find(*key)
            share = self._shares.find(member.group_id, *key)
            if share is None:
                raise AcknowledgementError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "the group has acquired no records of the partition from this leader",
                )
            try:
                return await in_turns(share.acknowledge(member.member_id, rows, rules, self._shares.now_ms))
            finally:
                self._shares.changed(share)
        except AcknowledgementError as error:
            return Outcome(error.code, str(error))
        except PartitionError as error:
            return Outcome(error.code, str(error), leader_hint(self._partitions.topics, *key, error))


def _renews(rows: Iterable[AcknowledgedBatch]) -> bool:
    return any(AcknowledgeType.RENEW in row.types for row in rows)


def ranges_of(batches: Iterable[AcknowledgementBatch]) -> int:
    """Return the number of batches and types."""
    return sum(len(row.acknowledge_types) + 1 for row in batches)


def check_size(rows: Mapping[PartitionKey, Sequence[AcknowledgementBatch]]) -> int:
    """Bound the work of one request; return the number of its batches and types.

    Raises:
        ShareSessionError: INVALID_REQUEST.
    """
    counts = [ranges_of(batches) for batches in rows.values()]
    if max(counts, default=0) > PARTITION_RANGES_MAX:
        raise ShareSessionError(
            ErrorCode.INVALID_REQUEST,
            f"the request has {max(counts)} acknowledgements for a partition; send at most "
            f"{PARTITION_RANGES_MAX}",
        )
    if sum(counts) > ACKNOWLEDGED_RANGES_MAX:
        raise ShareSessionError(
            ErrorCode.INVALID_REQUEST,
            f"the request has {sum(counts)} acknowledgements; send at most {ACKNOWLEDGED_RANGES_MAX}",
        )
    return sum(counts)
