"""Checks of cluster, controllers and store before a node registers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest
from crc32c import crc32c
from ponor_metadata.client.errors import WrongClusterError
from ponor_metadata.client.joining import ANY_CLUSTER, Membership, check_store, verify_store
from ponor_metadata.client.seen_history import SeenHistory
from ponor_metadata.client.store_marker import ClusterMarker, MarkerDamagedError, read_copy, read_marker
from ponor_runtime.identity import ClusterOrdinal, NodeId
from ponor_runtime.runtime import Runtime
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

FIRST = ClusterMarker("first", ClusterOrdinal(1), "namespace-1")
SECOND = ClusterMarker("second", ClusterOrdinal(2), "namespace-2")
COPY = PurePath("/broker/marker")


def _play(story: object) -> None:
    simulation = Simulation(1)
    simulation.run(story(simulation.object_store()))  # type: ignore[operator]


def test_the_first_cluster_puts_its_marker_into_the_store() -> None:
    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        assert await read_marker(store, FIRST.key) == FIRST
        await check_store(store, FIRST, ANY_CLUSTER)

    _play(story)


def test_a_second_cluster_in_a_store_is_refused_with_both_names() -> None:
    """Two releases with equal names, or a cluster that was installed again over its bucket."""

    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        for membership in (ANY_CLUSTER, Membership("second")):
            with pytest.raises(WrongClusterError, match=r"cluster first .* cluster second .* mount the dir"):
                await check_store(store, SECOND, membership)
        assert await read_marker(store, SECOND.key) is None, "the refused cluster leaves no marker"

    _play(story)


def test_a_store_without_the_marker_that_the_cluster_put_is_refused() -> None:
    """A broker with a wrong prefix found no slots of a dead broker's log, and closed it: acknowledged records
    were lost.
    """

    async def story(store: SimObjectStore) -> None:
        membership = Membership(has_marked=True)
        with pytest.raises(WrongClusterError, match=r"has no marker .* Correct object_store"):
            await check_store(store, FIRST, membership)
        assert await read_marker(store, FIRST.key) is None, "the wrong store is not marked"
        seen = SeenHistory(0, 1, 2, bytes(8)).key(FIRST.namespace, NodeId(65_536))
        await store.put(seen, [b"x"])
        await check_store(store, FIRST, membership)
        assert await read_marker(store, FIRST.key) == FIRST, (
            "nodes of the cluster wrote here, so the marker was removed"
        )

    _play(story)


def test_a_store_is_shared_only_when_the_configuration_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        await check_store(store, SECOND, Membership(share_store=True))
        assert await read_marker(store, SECOND.key) == SECOND
        await check_store(store, FIRST, ANY_CLUSTER)
        assert "clusters other than" in caplog.text

    _play(story)


def test_a_namespace_of_another_cluster_is_refused() -> None:
    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        for other in (
            replace(FIRST, cluster_id="second"),
            replace(FIRST, cluster_ordinal=ClusterOrdinal(2)),
        ):
            with pytest.raises(WrongClusterError, match="belongs to cluster first"):
                await check_store(store, other, Membership(share_store=True))

    _play(story)


def test_an_unreadable_marker_of_another_cluster_is_ignored() -> None:
    """The other cluster may run a later release."""
    later = FIRST.encode().replace(b'"format": 1', b'"format": 2').partition(b"\n")[0] + b"\n"

    async def story(store: SimObjectStore) -> None:
        await store.put(FIRST.key, [later + f"{crc32c(later):08x}\n".encode()])
        with pytest.raises(WrongClusterError, match=f"not readable .*{FIRST.key}"):
            await check_store(store, SECOND, ANY_CLUSTER)
        await check_store(store, SECOND, Membership(share_store=True))
        await check_store(store, SECOND, ANY_CLUSTER)

    _play(story)


def test_a_damaged_marker_is_named() -> None:
    async def story(store: SimObjectStore) -> None:
        await store.put(FIRST.key, [FIRST.encode()[:-3] + b"00\n"])
        with pytest.raises(MarkerDamagedError, match="namespace-1"):
            await check_store(store, FIRST, ANY_CLUSTER)

    _play(story)


class Broker:
    """A machine whose process checks the store as a broker with a file write-ahead log does, and ends.

    `cluster` is what its controllers serve.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.store = simulation.object_store()
        self.cluster = FIRST
        self._process: SimProcess = simulation.process("broker", self._main)

    @property
    def runs(self) -> bool:
        return self._process.running

    async def _main(self, runtime: Runtime) -> None:
        await runtime.disk.make_directories(COPY.parent)
        await verify_store(runtime, self.store, self.cluster, ANY_CLUSTER, COPY)

    def begin(self) -> None:
        self._process.start()

    async def ends(self) -> None:
        await wait_until(lambda: not self.runs)
        assert self._process.failure is None, self._process.failure

    async def refused(self) -> str:
        await wait_until(lambda: not self.runs)
        assert isinstance(self._process.failure, WrongClusterError)
        return str(self._process.failure)

    async def copied(self) -> ClusterMarker | None:
        return await read_copy(self._process.disk, COPY)

    async def damage(self) -> None:
        file = await self._process.disk.open(COPY)
        await file.write_sync(0, [b"x"])
        await file.close()


def _play_broker(story: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(1)
    simulation.run(story(Broker(simulation)))


def test_a_first_start_waits_for_the_store_and_a_later_one_does_not(caplog: pytest.LogCaptureFixture) -> None:
    async def story(broker: Broker) -> None:
        broker.store.faults.down = True
        broker.begin()
        await asyncio.sleep(60)
        assert broker.runs, "nothing proves yet that the store is this cluster's"
        assert f"waiting for the object store: the marker of {FIRST} must be checked" in caplog.text
        broker.store.faults.down = False
        await broker.ends()
        assert await read_marker(broker.store, FIRST.key) == await broker.copied() == FIRST

        broker.store.faults.down = True
        broker.begin()
        await broker.ends()
        assert "begins without it, because an earlier start found it" in caplog.text

    _play_broker(story)


def test_waiting_for_a_silent_store_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(broker: Broker) -> None:
        broker.store.faults.latency_s = (600, 600)
        broker.begin()
        await asyncio.sleep(10)
        assert "waiting for the object store" in caplog.text
        assert "no answer" in caplog.text

    _play_broker(story)


def test_a_directory_of_another_cluster_is_refused_with_and_without_an_answer_of_the_store() -> None:
    async def story(broker: Broker) -> None:
        broker.begin()
        await broker.ends()
        broker.cluster = SECOND
        for broker.store.faults.down in (True, False):
            broker.begin()
            said = await broker.refused()
            assert f"{COPY}: this directory belongs to {FIRST}, the controllers serve {SECOND}" in said
        assert await read_marker(broker.store, SECOND.key) is None

    _play_broker(story)


def test_a_store_without_the_marker_that_an_earlier_start_found_is_refused() -> None:
    async def story(broker: Broker) -> None:
        broker.begin()
        await broker.ends()
        broker.store.bucket.objects.clear()
        broker.begin()
        assert "this is another store, or another prefix" in await broker.refused()
        assert await read_marker(broker.store, FIRST.key) is None

    _play_broker(story)


def test_a_damaged_copy_of_the_marker_is_replaced_after_a_check_of_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(broker: Broker) -> None:
        broker.begin()
        await broker.ends()
        await broker.damage()
        broker.store.faults.down = True
        broker.begin()
        await asyncio.sleep(60)
        assert broker.runs
        assert f"{COPY}: the checksum does not match" in caplog.text
        broker.store.faults.down = False
        await broker.ends()
        assert await broker.copied() == FIRST

    _play_broker(story)
