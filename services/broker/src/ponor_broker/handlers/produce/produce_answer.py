"""Encoding of Produce answers.

A request with one successful partition, the usual case, is answered from a template: the codec encodes such
an answer once per version and topic, and the numbers of each request are written into a copy.
Measured: 0.5 µs instead of 4.6 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.codec import encode, encode_buffers
from ponor_kafka.headers import RequestHeader, encode_response_header
from ponor_kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ponor_runtime.disk import Buffer

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.announcements import leader_hint
from ponor_broker.partitions.topics.topics import Topics

NO_TIMESTAMP: Final = -1
HINTS_VERSION_MIN: Final = 10
LOG_START_VERSION_MIN: Final = 5
TEMPLATES_MAX: Final = 4_096
_MARKS: Final = (-2_000_000_001, -3, -4_000_000_000_000_000_001, -5_000_000_000_000_000_001, -6)
"""Placeholders, whose positions in an encoded answer receive the real numbers. Their bytes cannot occur in a
topic name, and all of them together are longer than a topic id."""

Template: TypeAlias = Callable[[int, int, int, int, int], bytes]
"""Returns a response frame, from correlation id, partition, base offset, log append time and log start
offset."""


class PartitionOutcome:
    """Outcome of one partition of a request; `error` is set if the append was refused or has failed."""

    __slots__ = ("base_offset", "error", "index", "log_append_time_ms", "log_start_offset", "topic")

    def __init__(self, topic: str | bytes, index: int) -> None:
        self.topic = topic
        self.index = index
        self.base_offset = -1
        self.log_append_time_ms = NO_TIMESTAMP
        self.log_start_offset = -1
        self.error: PartitionError | None = None


class ProduceAnswers:
    """Encodes answers. `topics` provides leader hints."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._templates: dict[tuple[int, str | bytes], Template] = {}

    def one_success(self, header: RequestHeader, outcome: PartitionOutcome) -> bytes:
        """Return the response frame for one partition without an error."""
        return self.template(header.api_version, outcome.topic)(
            header.correlation_id,
            outcome.index,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start_offset,
        )

    def template(self, version: int, topic: str | bytes) -> Template:
        """Return the template of response frames for one successful partition of this topic, in this
        version.
        """
        key = (version, topic)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[key] = _template(*key)
        return template

    def body(self, version: int, outcomes: Sequence[PartitionOutcome], listener: str | None) -> list[Buffer]:
        """Return the response body for any outcomes; partitions of a topic are adjacent, as in the
        request. The addresses of leaders are those of the client's `listener`; None omits them.
        """
        endpoints: dict[int, NodeEndpoint] = {}
        topics: list[TopicProduceResponse] = []
        rows: list[PartitionProduceResponse] = []
        last: str | bytes | None = None
        for outcome in outcomes:
            if outcome.topic != last:
                rows = []
                last = outcome.topic
                topics.append(_topic_response(last, rows))
            rows.append(self._row(outcome, version, listener, endpoints))
        response = ProduceResponse(responses=topics, node_endpoints=list(endpoints.values()))
        return encode_buffers(response, version)

    def _row(
        self,
        outcome: PartitionOutcome,
        version: int,
        listener: str | None,
        endpoints: dict[int, NodeEndpoint],
    ) -> PartitionProduceResponse:
        error = outcome.error
        if error is None:
            return PartitionProduceResponse(
                index=outcome.index,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=outcome.log_start_offset,
            )
        row = PartitionProduceResponse(
            index=outcome.index,
            error_code=error.code,
            base_offset=-1,
            log_start_offset=outcome.log_start_offset,
            error_message=str(error),
            record_errors=[BatchIndexAndErrorMessage(*item) for item in error.record_errors],
        )
        hint = leader_hint(self._topics, outcome.topic, outcome.index, error)
        if hint is not None and version >= HINTS_VERSION_MIN:
            row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
            endpoint = None if listener is None else self._topics.broker(hint.leader_id, listener)
            if endpoint is not None:
                endpoints[hint.leader_id] = NodeEndpoint(*endpoint)
        return row


def _topic_response(topic: str | bytes, rows: Sequence[PartitionProduceResponse]) -> TopicProduceResponse:
    if isinstance(topic, bytes):
        return TopicProduceResponse(topic_id=topic, partition_responses=rows)
    return TopicProduceResponse(name=topic, partition_responses=rows)


def _template(version: int, topic: str | bytes) -> Template:
    """Build a template by encoding marks and cutting the frame at their positions."""
    index, error_code, base_offset, append_time_ms, log_start_offset = _MARKS
    row = PartitionProduceResponse(
        index=index,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=log_start_offset,
    )
    frame = encode_response_header(ApiKey.PRODUCE, version, 0)[4:] + encode(
        ProduceResponse(responses=[_topic_response(topic, [row])]), version
    )
    has_log_start = version >= LOG_START_VERSION_MIN
    numbers = ">ihqqq" if has_log_start else ">ihqq"
    marks = Struct(numbers).pack(*_MARKS[: len(numbers) - 1])
    before, found, after = frame.partition(marks)
    assert found
    assert marks not in after
    pack = Struct(f">ii{len(before)}s{numbers[1:]}{len(after)}s").pack
    size = 4 + len(frame)

    def with_log_start(correlation_id: int, index: int, offset: int, append_ms: int, log_start: int) -> bytes:
        return pack(size, correlation_id, before, index, 0, offset, append_ms, log_start, after)

    def without_log_start(correlation_id: int, index: int, offset: int, append_ms: int, _: int) -> bytes:
        return pack(size, correlation_id, before, index, 0, offset, append_ms, after)

    return with_log_start if has_log_start else without_log_start
