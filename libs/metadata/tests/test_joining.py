"""A node checks which cluster it meets before it registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from ponor_metadata.errors import WrongClusterError
from ponor_metadata.joining import ANY_CLUSTER, Membership, check_store
from ponor_metadata.seen_history import SeenHistory
from ponor_metadata.store_marker import ClusterMarker, MarkerDamagedError, read_marker
from ponor_runtime.identity import ClusterOrdinal, NodeId
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.simulation import Simulation

FIRST = ClusterMarker("first", ClusterOrdinal(1), "namespace-1")
SECOND = ClusterMarker("second", ClusterOrdinal(2), "namespace-2")


def _play(story: object) -> None:
    simulation = Simulation(1)
    simulation.run(story(simulation.object_store()))  # type: ignore[operator]


def test_the_first_cluster_marks_its_store_and_keeps_it() -> None:
    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        assert await read_marker(store, FIRST.key) == FIRST
        await check_store(store, FIRST, ANY_CLUSTER)

    _play(story)


def test_a_second_cluster_is_refused_and_told_both_names() -> None:
    """Two releases with equal names, or a cluster that was installed again over its bucket."""

    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        for membership in (ANY_CLUSTER, Membership("second")):
            with pytest.raises(WrongClusterError, match=r"cluster first .* cluster second .* mount the dir"):
                await check_store(store, SECOND, membership)
        assert await read_marker(store, SECOND.key) is None, "the refused cluster leaves no marker"

    _play(story)


def test_a_store_without_the_marker_of_a_cluster_that_put_it_is_another_store() -> None:
    """A broker with a wrong prefix found no slots of a dead broker's log, and closed it: acknowledged records were lost."""

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
        assert "holds other clusters" in caplog.text

    _play(story)


def test_a_namespace_of_another_cluster_is_refused() -> None:
    async def story(store: SimObjectStore) -> None:
        await check_store(store, FIRST, ANY_CLUSTER)
        with pytest.raises(WrongClusterError, match="belongs to cluster first"):
            await check_store(store, replace(FIRST, cluster_id="second"), Membership(share_store=True))

    _play(story)


def test_a_marker_of_another_cluster_that_is_not_readable_keeps_nobody_out() -> None:
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
