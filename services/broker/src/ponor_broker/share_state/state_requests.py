"""The five requests of the share coordinator, as the persister sends them.

All have the same shape: a group, its topics, and a row for each partition. An answer has a row for each
partition, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ponor_kafka.message import Message, Struct
from ponor_kafka.messages import delete_share_group_state as deletion
from ponor_kafka.messages import initialize_share_group_state as initialization
from ponor_kafka.messages import read_share_group_state as reading
from ponor_kafka.messages import read_share_group_state_summary as summing
from ponor_kafka.messages import write_share_group_state as writing

from ponor_broker.coordination.share_persister import SharePartitionKey, StateBatch

ROWS_PER_REQUEST_MAX: Final = 1_000
READS_PER_REQUEST_MAX: Final = 4
"""The answer to a read has up to `BATCHES_MAX` batches for each row. Rows beyond the coordinator's
`ANSWER_BATCHES_MAX` are refused and repeated."""
ROW_BYTES: Final = 48
"""Size of a row in a request without its batches, with its topic id; rounded up."""
BATCH_BYTES: Final = 20
"""Size of a state batch in a request, rounded up."""


class ShareStateApis(Protocol):
    """The share coordinator of this broker, without a connection."""

    async def initialize(
        self, request: initialization.InitializeShareGroupStateRequest
    ) -> initialization.InitializeShareGroupStateResponse: ...

    async def read(
        self, request: reading.ReadShareGroupStateRequest
    ) -> reading.ReadShareGroupStateResponse: ...

    async def write(
        self, request: writing.WriteShareGroupStateRequest
    ) -> writing.WriteShareGroupStateResponse: ...

    async def delete(
        self, request: deletion.DeleteShareGroupStateRequest
    ) -> deletion.DeleteShareGroupStateResponse: ...

    async def summary(
        self, request: summing.ReadShareGroupStateSummaryRequest
    ) -> summing.ReadShareGroupStateSummaryResponse: ...


@dataclass(frozen=True, slots=True, eq=False)
class StateApi:
    """One of the five APIs.

    Attributes:
        name: label of metrics.
        rows_max: rows of one request.
    """

    name: str
    version: int
    request: Callable[[str, Any], Message]
    topic: Callable[[bytes, Any], Struct]
    answer: type[Message]
    local: Callable[[ShareStateApis], Callable[[Any], Awaitable[Any]]]
    rows_max: int = ROWS_PER_REQUEST_MAX

    def build(self, group_id: str, rows: Iterable[tuple[SharePartitionKey, Struct]]) -> Message:
        """Return the request with these rows."""
        topics: dict[bytes, list[Struct]] = {}
        for key, row in rows:
            topics.setdefault(key.topic_id.bytes, []).append(row)
        return self.request(
            group_id, [self.topic(topic_id, of_topic) for topic_id, of_topic in topics.items()]
        )


INITIALIZE: Final = StateApi(
    "initialize",
    0,
    initialization.InitializeShareGroupStateRequest,
    initialization.InitializeStateData,
    initialization.InitializeShareGroupStateResponse,
    lambda apis: apis.initialize,
)
READ: Final = StateApi(
    "read",
    0,
    reading.ReadShareGroupStateRequest,
    reading.ReadStateData,
    reading.ReadShareGroupStateResponse,
    lambda apis: apis.read,
    READS_PER_REQUEST_MAX,
)
WRITE: Final = StateApi(
    "write",
    1,
    writing.WriteShareGroupStateRequest,
    writing.WriteStateData,
    writing.WriteShareGroupStateResponse,
    lambda apis: apis.write,
)
DELETE: Final = StateApi(
    "delete",
    0,
    deletion.DeleteShareGroupStateRequest,
    deletion.DeleteStateData,
    deletion.DeleteShareGroupStateResponse,
    lambda apis: apis.delete,
)
SUMMARY: Final = StateApi(
    "summary",
    1,
    summing.ReadShareGroupStateSummaryRequest,
    summing.ReadStateSummaryData,
    summing.ReadShareGroupStateSummaryResponse,
    lambda apis: apis.summary,
)
APIS: Final = (INITIALIZE, READ, WRITE, DELETE, SUMMARY)


def initialize_row(key: SharePartitionKey, state_epoch: int, start_offset: int) -> Struct:
    """Return a row of an InitializeShareGroupState."""
    return initialization.PartitionData(key.partition, state_epoch, start_offset)


def read_row(key: SharePartitionKey, leader_epoch: int) -> Struct:
    """Return a row of a ReadShareGroupState."""
    return reading.PartitionData(key.partition, leader_epoch)


def write_row(
    key: SharePartitionKey,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Sequence[StateBatch],
) -> Struct:
    """Return a row of a WriteShareGroupState."""
    rows = [writing.StateBatch(*batch) for batch in batches]
    return writing.PartitionData(
        key.partition, state_epoch, leader_epoch, start_offset, delivery_complete_count, rows
    )


def delete_row(key: SharePartitionKey) -> Struct:
    """Return a row of a DeleteShareGroupState."""
    return deletion.PartitionData(key.partition)


def summary_row(key: SharePartitionKey) -> Struct:
    """Return a row of a ReadShareGroupStateSummary."""
    return summing.PartitionData(key.partition, -1)
