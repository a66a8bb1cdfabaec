"""Faults between the creation of a stream or key and its record in the partition: when the cluster
is quiescent, no stream or key is left without a row that uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_broker.partition_services import PartitionServices
from ponor_broker.storage.stream_manager import ControllerStreamManager
from ponor_cluster_simulation.invariants.quiescence import unexplained
from ponor_kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_runtime.identity import NodeId
from s3stream.errors import S3StreamError

from tests.scenarios.moving_world import MovingWorld
from tests.simulation.mutants.table import MUTANTS

STEPS = 5
"""Controller operations of a partition's first open: create streams, put a key, open streams, and
some more."""
SURE_STEPS = 3
"""Number of operations in every run."""
PURGED_S = 5.0
REST_S_MAX = 120.0
NAME = "opening"


class Fault(Enum):
    """The fault that follows an operation's commit, before its answer arrives."""

    CRASH = "crash"
    REFUSAL = "refusal"
    STORE_AWAY = "store away"
    DELETION = "deletion"


class Faults:
    """Injects a fault into one operation of one broker."""

    def __init__(self) -> None:
        self.left = 0
        self.strike: Callable[[NodeId], Any] | None = None

    async def answered(self, node_id: NodeId) -> None:
        """Called when an operation of a broker was committed and its answer was not delivered."""
        if self.strike is None:
            return
        self.left -= 1
        if self.left == 0:
            strike, self.strike = self.strike, None
            await strike(node_id)

    @contextmanager
    def on(self) -> Iterator[None]:
        submit, put_keys = ControllerStreamManager._submit, PartitionServices._put_keys

        async def submitted(manager: ControllerStreamManager, operation: Operation) -> OperationResult:
            result = await submit(manager, operation)
            await self.answered(manager._node_id)
            return result

        async def put(services: PartitionServices, puts: Any) -> Any:
            held = await put_keys(services, puts)
            await self.answered(services._node_id)
            return held

        with (
            patch.object(ControllerStreamManager, "_submit", submitted),
            patch.object(PartitionServices, "_put_keys", put),
        ):
            yield


async def _strike(world: MovingWorld, fault: Fault, node_id: NodeId) -> None:
    name = world.cluster.broker_of(node_id)
    assert name is not None
    match fault:
        case Fault.CRASH:
            asyncio.get_running_loop().call_soon(
                partial(world.cluster.processes[name].crash, power_loss=True)
            )
            await asyncio.Event().wait()
        case Fault.REFUSAL:
            raise S3StreamError("told by the story")
        case Fault.STORE_AWAY:
            world.store_of_faults().down = True
        case Fault.DELETION:
            await _delete(world)
            await asyncio.sleep(PURGED_S)  # the broker receives the answer after the topic was deleted


async def _delete(world: MovingWorld) -> None:
    client = await world.client(world.cluster.brokers[1])
    request = DeleteTopicsRequest(topics=[DeleteTopicState(NAME)], timeout_ms=10_000)
    await client.ask(request, 6, DeleteTopicsResponse, timeout_s=60.0)


async def _create(world: MovingWorld) -> None:
    client = await world.client(world.cluster.brokers[1])
    topic = CreatableTopic(NAME, num_partitions=2, replication_factor=-1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    await client.ask(request, 7, CreateTopicsResponse, timeout_s=60.0)


def _rest(world: MovingWorld) -> list[str]:
    """Streams and keys that no row uses, and partitions that are not served."""
    assert world.cluster.watch.controller is not None
    image = world.cluster.watch.controller.image
    left = unexplained(image)
    for row in image[PARTITIONS]:
        name = world.cluster.broker_of(row.leader_id)
        if name is None or world.services[name].partitions.get(row.topic_id, row.partition) is None:
            left.append(f"partition {row.partition} of {row.topic_id.hex()} is not served")
    return left


def _tell(fault: Fault, step: int, *, rest_s: float = REST_S_MAX) -> list[str]:
    """Open a new topic's partitions with a fault at a step; return what is left without a row."""
    faults, left = Faults(), [""]

    async def story(world: MovingWorld) -> None:
        victim = world.cluster.node_of(world.cluster.brokers[0])

        async def strike(node_id: NodeId) -> None:
            if node_id != victim:  # the other broker answers the client
                faults.left, faults.strike = 1, strike
                return
            await _strike(world, fault, node_id)

        await world.until(world.serves_somewhere)
        faults.left, faults.strike = step, strike
        await _create(world)
        await asyncio.sleep(2 * PURGED_S)
        world.store_of_faults().down = False
        for name in world.cluster.brokers:
            if not world.cluster.processes[name].running:
                world.cluster.start(name)
        assert faults.strike is None or step > SURE_STEPS, "the fault happened"
        with suppress(TimeoutError):
            await world.until(lambda: not _rest(world), rest_s)
        left[:] = _rest(world)

    with faults.on():
        MovingWorld(11, wal=WalKind.OBJECT).tell(story)
    return left


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_no_stream_or_key_is_left_without_a_row(fault: Fault, step: int) -> None:
    assert _tell(fault, step) == []


@pytest.mark.parametrize(
    ("mutant", "fault", "step"),
    [
        ("open_keeps_unknown_streams", Fault.REFUSAL, 1),
        ("open_forgets_after_refusal", Fault.REFUSAL, 1),
    ],
)
def test_a_planted_bug_leaves_streams_or_keys(mutant: str, fault: Fault, step: int) -> None:
    with MUTANTS[mutant].planted():
        assert _tell(fault, step, rest_s=20.0) != []
