"""Produce: from a request's bytes to appends, and from their durability to the answer.

What lives here: the request path. The request is walked without an object per record; each partition's batch is validated and appended in
one step, so that pipelined requests of a connection are taken in their order; the answer leaves when everything is durable. acks=1 and acks=-1
mean the same here: there is one log, and it is durable before anything is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ponor_kafka.codec import encode_buffers
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import RequestHeader
from ponor_kafka.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ponor_kafka.produce_walk import TOPIC_ID_MIN, VERSION_MAX, VERSION_MIN, ProduceWalk, walk_produce
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from s3stream.errors import S3StreamError

from ponor_broker.connection import CloseConnectionError, Response
from ponor_broker.dispatch import Reply
from ponor_broker.handlers.leader_hints import leader_hint
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition_manager import PartitionManager

NO_TIMESTAMP: Final = -1
HINTS_VERSION_MIN: Final = 10
ACKS_NONE: Final = 0
ACKS: Final = (-1, 0, 1)


@dataclass(slots=True)
class _Outcome:
    """One partition of the request. `durable` is what the answer waits for."""

    topic: str | bytes
    index: int
    base_offset: int = -1
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = -1
    error: PartitionError | None = None
    durable: asyncio.Future[None] | None = None


class ProduceHandler:
    """Fulfils `dispatch.RawHandler`."""

    version_min = VERSION_MIN
    version_max = VERSION_MAX

    def __init__(self, partitions: PartitionManager, validator: BatchValidator, clock: Clock) -> None:
        self._partitions = partitions
        self._validator = validator
        self._clock = clock

    def start(
        self, frame: bytearray, header: RequestHeader, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Append what can be appended, now.

        Raises:
            KafkaWireError: malformed; nothing was appended.
            CloseConnectionError: acks=0 and something was refused: closing is the only way to tell.
        """
        version = header.api_version
        walk, _ = walk_produce(version, memoryview(frame), header.body_position)
        refusal = _refusal_of_all(walk)
        now_ms = self._clock.wall_ms()
        outcomes = [
            self._append(
                topic_id if version >= TOPIC_ID_MIN else name, index, records, version, now_ms, refusal
            )
            for name, topic_id, index, records in walk.partitions
        ]
        if walk.acks == ACKS_NONE:
            _close_on_refusal(outcomes)
            reply.note()
            return None
        waiting = [outcome for outcome in outcomes if outcome.durable is not None]
        if not waiting:
            return reply(self._answer(outcomes, version))
        return self._answer_later(outcomes, waiting, version, reply)

    def _append(
        self,
        topic: str | bytes,
        index: int,
        records: memoryview | None,
        version: int,
        now_ms: int,
        refusal: PartitionError | None,
    ) -> _Outcome:
        outcome = _Outcome(topic, index)
        try:
            if refusal is not None:
                raise refusal
            partition = self._partitions.find(topic, index)
            batch = self._validator.validate(records, version, partition.config, now_ms)
            pending = partition.append(batch)
        except PartitionError as error:
            outcome.error = error
        except S3StreamError as error:
            outcome.error = storage_error(error)
        else:
            outcome.base_offset = pending.base_offset
            outcome.durable = pending.durable
            outcome.log_start_offset = partition.log_start_offset
            if partition.config.is_log_append_time:
                outcome.log_append_time_ms = now_ms
        return outcome

    def _answer_later(
        self, outcomes: list[_Outcome], waiting: list[_Outcome], version: int, reply: Reply
    ) -> asyncio.Future[Response]:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        left = len(waiting)

        def durable(_: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not answer.done():
                answer.set_result(reply(self._answer(outcomes, version)))

        for outcome in waiting:
            assert outcome.durable is not None
            outcome.durable.add_done_callback(durable)
        return answer

    def _answer(self, outcomes: list[_Outcome], version: int) -> list[Buffer]:
        endpoints: dict[int, NodeEndpoint] = {}
        topics: list[TopicProduceResponse] = []
        rows: list[PartitionProduceResponse] = []
        last: str | bytes | None = None
        for outcome in outcomes:
            if outcome.topic != last:
                rows = []
                last = outcome.topic
                if isinstance(last, bytes):
                    topics.append(TopicProduceResponse(topic_id=last, partition_responses=rows))
                else:
                    topics.append(TopicProduceResponse(name=last, partition_responses=rows))
            rows.append(self._row(outcome, version, endpoints))
        response = ProduceResponse(responses=topics, node_endpoints=list(endpoints.values()))
        return encode_buffers(response, version)

    def _row(
        self, outcome: _Outcome, version: int, endpoints: dict[int, NodeEndpoint]
    ) -> PartitionProduceResponse:
        error = outcome.error or _failed_append(outcome)
        if error is None:
            return PartitionProduceResponse(
                index=outcome.index,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=outcome.log_start_offset,
            )
        row = PartitionProduceResponse(
            index=outcome.index, error_code=error.code, base_offset=-1, error_message=str(error)
        )
        hint = leader_hint(self._partitions.topics, outcome.topic, outcome.index, error.code)
        if hint is not None and version >= HINTS_VERSION_MIN:
            row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
            if hint.endpoint is not None:
                endpoints[hint.leader_id] = NodeEndpoint(*hint.endpoint)
        return row


def _refusal_of_all(walk: ProduceWalk) -> PartitionError | None:
    if walk.acks not in ACKS:
        return PartitionError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {walk.acks} is none of -1, 0 and 1")
    if walk.transactional_id is not None:
        return PartitionError(ErrorCode.INVALID_TXN_STATE, "there are no transactions on this broker yet")
    return None


def _failed_append(outcome: _Outcome) -> PartitionError | None:
    if outcome.durable is None:
        return None
    if outcome.durable.cancelled():
        return PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the append was given up")
    failure = outcome.durable.exception()
    return None if failure is None else storage_error(failure)


def _close_on_refusal(outcomes: Iterable[_Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise CloseConnectionError(f"Produce without acknowledgement was refused: {outcome.error}")
