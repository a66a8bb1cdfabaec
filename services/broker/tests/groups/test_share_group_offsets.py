"""Offsets of share groups: altered, described and deleted."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from ponor_broker.requests.request_rows import ROWS_MAX
from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.message import ZERO_UUID, Message
from ponor_kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
)
from ponor_kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
)
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestTopic,
)

from services.broker.tests.share_groups_kit import (
    OFFSETS_KEYS,
    TOPIC_ID,
    Wire,
    key,
    wire,
)

__all__ = ["wire"]  # the fixture


async def test_altered_offsets_raise_the_state_epoch(wire: Wire) -> None:
    await wire.join("m", "t")
    assert (await wire.alter(5)).error_code == ErrorCode.NON_EMPTY_GROUP
    await wire.beat("m", -1)
    before = wire.world.persister.states[key(0)].state_epoch
    answer = await wire.alter(5)
    assert [(r.partition_index, r.error_code) for r in answer.responses[0].partitions] == [(0, 0)]
    assert (await wire.alter(7)).responses[0].topic_id == TOPIC_ID
    state = wire.world.persister.states[key(0)]
    assert (state.start_offset, wire.world.persister.states[key(1)].start_offset) == (7, -1)
    assert state.state_epoch > before + 1


async def test_altered_offsets_of_a_new_group_survive_a_restart_and_a_subscription(wire: Wire) -> None:
    await wire.alter(5)
    await wire.restart()
    assert (await wire.describe()).group_state == "Empty"
    await wire.join("m", "t")
    starts = [wire.world.persister.states[key(partition)].start_offset for partition in range(4)]
    assert starts == [5, -1, -1, -1]


async def test_unknown_partitions_cannot_be_altered(wire: Wire) -> None:
    for topic, partition in (("none", 0), ("t", 4)):
        answer = await wire.alter(5, topic, partition)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await wire.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_are_described_with_their_lag(wire: Wire) -> None:
    await wire.alter(5)
    rows = (await wire.offsets()).topics[0].partitions
    assert [(r.partition_index, r.start_offset, r.lag) for r in rows] == [(0, 5, 95)]
    await wire.join("m", "t")
    asked = [
        DescribeShareGroupOffsetsRequestTopic("t", [1]),
        DescribeShareGroupOffsetsRequestTopic("none", [0]),
    ]
    known, unknown = (await wire.offsets(asked)).topics
    assert [(r.start_offset, r.lag, r.error_code) for r in known.partitions] == [(-1, -1, 0)]
    assert (unknown.topic_id, unknown.partitions[0].start_offset) == (ZERO_UUID, -1)


async def test_deleted_offsets(wire: Wire) -> None:
    await wire.join("m", "t")
    assert (await wire.delete_offsets("t")).error_code == ErrorCode.NON_EMPTY_GROUP
    await wire.beat("m", -1)
    wire.world.topics["u"] = (UUID(int=2), 1)
    answer = await wire.delete_offsets("t", "u", "none")
    assert [(r.topic_name, r.error_code) for r in answer.responses] == [("t", 0), ("u", 3), ("none", 3)]
    assert answer.responses[1].error_message == "There is no offset information to delete."
    assert not wire.world.persister.states
    assert (await wire.offsets()).topics == []
    await wire.join("m", "t")
    assert set(wire.world.persister.states) == {key(partition) for partition in range(4)}


async def test_a_deletion_of_offsets_that_failed_is_repeated(wire: Wire) -> None:
    await wire.join("m", "t")
    await wire.beat("m", -1)
    wire.world.persister.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    failed = await wire.delete_offsets("t")
    assert failed.responses[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    wire.world.persister.refusal = None
    await wire.restart()
    assert (await wire.delete_offsets("t")).responses[0].error_code == 0
    assert not wire.world.persister.states


@pytest.mark.parametrize("api", OFFSETS_KEYS[1:])
async def test_requests_for_offsets_name_a_group(wire: Wire, api: ApiKey) -> None:
    request: Message = (
        AlterShareGroupOffsetsRequest("", [])
        if api is ApiKey.ALTER_SHARE_GROUP_OFFSETS
        else DeleteShareGroupOffsetsRequest("", [])
    )
    assert (await wire.send(api, request)).error_code == ErrorCode.INVALID_GROUP_ID


async def test_a_reset_waits_until_its_epoch_is_durable(wire: Wire) -> None:
    persister = wire.world.persister
    persister.opened.clear()
    first = asyncio.create_task(wire.alter(5))
    await wire.world.clock.settle()
    first.cancel()
    await wire.restart()  # the record that the states are being initialized is durable already
    persister.opened.set()
    partition = wire.world.open[0]
    partition.is_slow = True
    second = asyncio.create_task(wire.alter(6))
    await wire.world.clock.settle()
    assert not persister.states
    partition.is_slow = False
    partition.sync()
    assert (await second).error_code == 0
    assert persister.states[key(0)].start_offset == 6


async def test_a_request_for_too_many_partitions_is_refused(wire: Wire) -> None:
    await wire.join("m", "t")
    rows = [DescribeShareGroupOffsetsRequestTopic("t", list(range(ROWS_MAX)))]
    with pytest.raises(KafkaWireError):
        await wire.offsets(rows)
