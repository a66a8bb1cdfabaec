"""Tests of the pauses between attempts: after an outage of the store, the first answer ends those of all
calls. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pytest
from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreRefusedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation
from s3stream.backoff import SharedBackoff
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.records import StreamRecord
from s3stream.settings import StorageSettings
from s3stream.stores.open_store import wrap_object_store

from libs.s3stream.tests.cluster_model import ClusterModel

_T = TypeVar("_T")
OUTAGE_S: Final = 45.0
SLOTS: Final = 4
ROUND_TRIPS_S: Final = 0.5
"""More than a call takes, and less than the pauses after a long outage."""


class RefusingStore(SimObjectStore):
    """Refuses calls while it is down; only the repetitions of slots go on then."""

    async def call(self, operation: str, what: str, apply: Callable[[], _T]) -> _T:
        if self.faults.down:
            raise ObjectStoreRefusedError("403")
        return await super().call(operation, what, apply)


def run(
    live: Callable[[Runtime, SimObjectStore], Awaitable[None]], kind: type[SimObjectStore] = SimObjectStore
) -> None:
    """Run a process with a store in virtual time."""
    simulation = Simulation(1)
    store = kind(simulation.loop, "1", simulation.trace)

    async def process(runtime: Runtime) -> None:
        await live(runtime, store)

    running = simulation.process("node", process)

    async def scenario() -> None:
        running.start()
        await wait_until(lambda: not running.running, poll_s=1, timeout_s=600)
        if running.failure is not None:
            raise running.failure

    simulation.run(scenario())


@pytest.mark.parametrize("kind", [SimObjectStore, RefusingStore])
def test_slots_are_acknowledged_soon_after_the_first_answer(kind: type[SimObjectStore]) -> None:
    acknowledged_s: list[float] = []

    async def live(runtime: Runtime, store: SimObjectStore) -> None:
        loop = asyncio.get_running_loop()
        tasks = BackgroundTasks(runtime.fail_stop)
        node = ClusterModel(runtime.clock).register(NodeId(1))
        wal = await ObjectWal.open(
            store=wrap_object_store(store, runtime=runtime),
            name=await node.open_wal(),
            manager=node,
            settings=StorageSettings(),
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            tasks=tasks,
        )
        store.faults.down = True
        for offset in range(SLOTS):
            record = StreamRecord(StreamId(5), StreamEpoch(2), offset, 1, 77, b"payload")
            wal.append(
                [record.encode_header(), record.payload],
                lambda error: (
                    acknowledged_s.append(loop.time()) if error is None else pytest.fail(str(error))
                ),
            )
            wal.hurry()
            await asyncio.sleep(OUTAGE_S / SLOTS)
        assert not acknowledged_s
        assert wal.next_sequence == SLOTS
        store.faults.down = False
        await wait_until(lambda: store.bucket.applied["put"] > 0, poll_s=0.01, timeout_s=60)
        answered_s = loop.time()
        await wait_until(lambda: len(acknowledged_s) == SLOTS, poll_s=0.01, timeout_s=60)
        assert loop.time() - answered_s < ROUND_TRIPS_S
        await wal.close()
        await tasks.close()

    run(live, kind)


def test_a_store_that_answers_some_calls_gets_the_full_pauses() -> None:
    async def live(runtime: Runtime, _store: SimObjectStore) -> None:
        loop = asyncio.get_running_loop()
        shared = SharedBackoff(runtime.clock)

        async def answer_others() -> None:
            while True:
                await asyncio.sleep(0.1)
                shared.answered()

        async def wait(seconds: float) -> float:
            began_s = loop.time()
            await call.wait(seconds)
            return loop.time() - began_s

        call = shared.call()
        others = asyncio.ensure_future(answer_others())
        assert await wait(4) < 1, "no other call was answered since this one began"
        assert [await wait(4) for _ in range(3)] == pytest.approx([4, 4, 4])
        others.cancel()
        assert await wait(4) == pytest.approx(4)
        asyncio.get_running_loop().call_later(1, shared.answered)
        assert await wait(4) == pytest.approx(1), (
            "an outage of its own: nothing was answered for a whole pause"
        )

    run(live)
