"""Openings: faults affect the process that opened a resource before its answer, and unclosed
resources are named.
"""

from __future__ import annotations

import asyncio

import pytest
from ponor.metadata.v1.records_pb2 import (
    NodeRegistered,
    OperationCompleted,
    PartitionMoveBegun,
    Record,
    StreamCreated,
)
from ponor_cluster_simulation.faults.fault import Fault, FaultKind
from ponor_cluster_simulation.faults.openings import Openings
from ponor_cluster_simulation.invariants.fences import Fences
from ponor_cluster_simulation.invariants.registry import Checks, InvariantBrokenError
from ponor_runtime.network import Connection
from ponor_runtime.runtime import Runtime
from ponor_simulation.multipart_store import SimMultipartStore
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

ADDRESS, METHOD = "server:7000", "/ponor.test.v1.TestService/Test"


def _fault(kind: FaultKind, target: str) -> Fault:
    return Fault(0, 0.0, kind, target, 1.0)


def test_a_fault_affects_the_opening_process_once() -> None:
    struck: list[tuple[FaultKind, str]] = []
    openings = Openings(
        {7: "broker-0", 8: "broker-1"}.get,
        lambda fault, name: struck.append((fault.kind, name)),
        lambda *_: None,
    )
    created = Record(stream_created=StreamCreated(stream_id=1))
    of_seven = Record(operation_completed=OperationCompleted(node_id=7))
    of_eight = Record(operation_completed=OperationCompleted(node_id=8))
    openings.wait(_fault(FaultKind.CRASH_AT_OPEN, "stream_created"))
    for record in (of_eight, created, created, of_seven, created, of_eight):
        openings.committed(record)
    assert struck == [(FaultKind.CRASH_AT_OPEN, "broker-0")]


def test_the_answer_of_a_store_call_is_lost() -> None:
    openings = Openings(lambda _: None, lambda *_: None, lambda *_: None)
    openings.wait(_fault(FaultKind.LOST_AT_OPEN, "multipart_create"))
    openings.wait(_fault(FaultKind.PAUSE_AT_OPEN, "put"))
    calls = ("put", "multipart_create", "multipart_create")
    assert [openings.applied(call, "compactor-0") for call in calls] == [False, True, False]


@pytest.mark.parametrize(("closes", "again"), [(True, True), (False, True), (False, False)])
def test_a_connection_that_will_not_be_closed_is_named(closes: bool, again: bool) -> None:
    simulation = Simulation(1)
    called: list[Connection] = []

    async def serve(runtime: Runtime) -> None:
        async def hang_up(connection: Connection) -> None:
            await connection.close()

        await runtime.network.listen(ADDRESS, {METHOD: hang_up})
        await asyncio.Event().wait()

    async def call(runtime: Runtime) -> None:
        async def once() -> None:
            called.append(await runtime.network.connect(ADDRESS, METHOD))
            if closes:
                await called[-1].close()

        await asyncio.get_running_loop().create_task(once())
        if again:
            await once()
            await once()
        await asyncio.Event().wait()

    async def story() -> None:
        simulation.process("server", serve).start()
        await asyncio.sleep(1)
        client = simulation.process("client", call)
        client.start()
        await wait_until(lambda: len(called) == (3 if again else 1))
        found = simulation.network.forgotten()
        assert len(found) == (0 if closes else 2 if again else 1)
        assert all("client#1 called" in each for each in found)
        client.crash()
        assert simulation.network.forgotten() == found, "an ended process cannot close its connection"

    simulation.run(story())


def test_a_multipart_upload_is_forgotten_while_its_owner_runs_without_ending_it() -> None:
    simulation = Simulation(2)
    store = simulation.object_store()
    parts = SimMultipartStore(store)

    async def upload(_: Runtime) -> None:
        kept, ended = await parts.create_multipart("1"), await parts.create_multipart("2")
        assert kept != ended
        await parts.abort_multipart(ended)
        await asyncio.Event().wait()

    async def story() -> None:
        process = simulation.process("compactor-0", upload)
        process.start()
        await wait_until(lambda: store.bucket.applied["multipart_abort"] == 1)
        (kept,) = store.bucket.multiparts.values()
        assert kept.key == "1"
        assert kept.is_forgotten_by == "compactor-0#1"
        process.crash()
        assert not kept.is_forgotten_by, "it is the collector's"

    simulation.run(story())


@pytest.mark.parametrize(
    ("is_cut_off", "is_hindered", "is_moving", "is_legal"),
    [
        (True, False, False, True),
        (False, True, True, True),
        (False, True, False, False),
        (False, False, True, False),
    ],
)
def test_a_slow_store_is_a_reason_to_fence_only_the_source_of_a_move(
    is_cut_off: bool, is_hindered: bool, is_moving: bool, is_legal: bool
) -> None:
    simulation = Simulation(3)

    async def live(_: Runtime) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        broker = simulation.process("broker-0", live)
        broker.start()
        await asyncio.sleep(100)
        until_s = simulation.loop.time()
        fences = Fences(
            Checks(),
            simulation.loop.time,
            5.0,
            lambda _: until_s if is_cut_off else 0.0,
            lambda _: until_s if is_hindered else 0.0,
        )
        if is_moving:
            fences.committed(Record(partition_move_begun=PartitionMoveBegun(source_id=7)))
        if is_legal:
            fences.fenced(broker, 7)
        else:
            with pytest.raises(InvariantBrokenError, match="invariant 45"):
                fences.fenced(broker, 7)

    simulation.run(story())


def test_a_crashed_broker_may_be_fenced_while_its_successor_cannot_register() -> None:
    simulation = Simulation(3)

    async def live(_: Runtime) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        broker = simulation.process("broker-0", live)
        broker.start()
        fences = Fences(Checks(), simulation.loop.time, 5.0, lambda _: 0.0, lambda _: 0.0)
        await asyncio.sleep(1)
        fences.committed(Record(node_registered=NodeRegistered(node_id=7, node_epoch=1)))
        await asyncio.sleep(1)
        broker.crash()
        broker.start()
        await asyncio.sleep(100)  # no controller leads
        fences.fenced(broker, 7)
        fences.committed(Record(node_registered=NodeRegistered(node_id=7, node_epoch=2)))
        with pytest.raises(InvariantBrokenError, match="invariant 45"):
            fences.fenced(broker, 7)

    simulation.run(story())
