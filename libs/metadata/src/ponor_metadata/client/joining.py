"""Checks before a node registers: the controllers, this node and its object store must belong to one cluster.

A node in the wrong cluster would write data that its own cluster does not find. And if all controllers lose
their directories and form a new, empty cluster, the nodes must not join it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final, TypeVar

from ponor_runtime.disk import Disk
from ponor_runtime.identity import ClusterOrdinal, NodeId, node_id_in
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.runtime import Runtime

from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.errors import WrongClusterError
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.seen_history import SeenHistory, read_seen
from ponor_metadata.client.store_marker import (
    PREFIX,
    ClusterMarker,
    MarkerDamagedError,
    other_clusters,
    put_marker,
    read_copy,
    read_marker,
    write_copy,
)

LOG: Final = logging.getLogger("ponor.joining")
ASK_SECONDS_MAX: Final = 10.0
"""After this time without an answer from the controllers a warning is logged; the node continues to retry."""
STORE_SECONDS_MAX: Final = 5.0
"""After this time without an answer from the store a warning is logged, or a node that has a copy of the
marker starts without the store."""
RETRY_SECONDS: Final = 0.5
WAITS: Final = "waiting for the object store: the marker of %s must be checked before this node begins (%s)"
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Membership:
    """What a node's configuration and the controllers say about its cluster and its store.

    Attributes:
        cluster_id: the expected cluster; empty: that of the controllers, unless the store has another one.
        share_store: whether the store may contain other clusters too.
        has_marked: whether the cluster has already put its marker into the store. If so, a store without this
            marker is the wrong store.
    """

    cluster_id: str = ""
    share_store: bool = False
    has_marked: bool = False


ANY_CLUSTER: Final = Membership()


@dataclass(frozen=True, slots=True)
class Joined:
    """The cluster of a node. `node_id`: the complete id, even if the configuration contains only a number."""

    marker: ClusterMarker
    node_id: NodeId
    seen: tuple[SeenHistory, ...] = ()
    """How far nodes of the cluster have seen the controllers' log: their records in the store."""
    is_checked: bool = True
    """Whether the store was checked. If not, the caller must call `check_later`."""


async def join(
    runtime: Runtime,
    controllers: Sequence[str] | KnownControllers,
    node_id: NodeId,
    membership: Membership,
    store: ObjectStore,
    stop: asyncio.Event,
    *,
    copy: PurePath | None = None,
) -> Joined | None:
    """Find the cluster and check that node, controllers and store belong to it. Wait until controllers and
    store answer; return None if `stop` is set before.

    Args:
        runtime: network and clock.
        controllers: their addresses.
        node_id: the configured id; a number below 2^16 is combined with the cluster's ordinal.
        membership: the expected cluster.
        store: the object store; the marker is put into it if it is absent.
        stop: ends the wait.
        copy: path of the marker's copy, for a node that can start without the store. If the copy exists, the
            node waits only briefly for the store.

    Raises:
        WrongClusterError: controllers, node and store do not belong to one cluster.
    """
    loop = asyncio.get_running_loop()
    joining = loop.create_task(_join(runtime, controllers, node_id, membership, store, copy), name="joining")
    stopping = loop.create_task(stop.wait(), name="joining-stop")
    try:
        await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
        return joining.result() if joining.done() else None
    finally:
        joining.cancel()
        stopping.cancel()
        await asyncio.gather(joining, stopping, return_exceptions=True)


async def _join(
    runtime: Runtime,
    controllers: Sequence[str] | KnownControllers,
    node_id: NodeId,
    membership: Membership,
    store: ObjectStore,
    copy: PurePath | None,
) -> Joined:
    client = ClusterClient(runtime.network, runtime.clock, controllers)
    identity = await _answer(lambda: client.describe_identity(timeout_s=ASK_SECONDS_MAX))
    if membership.cluster_id not in ("", identity.cluster_id):
        raise WrongClusterError(
            f"this node belongs to cluster {membership.cluster_id}, the controllers serve cluster"
            f" {identity.cluster_id}. If the controllers lost their directories, "
            "stop them and mount the directories again; if this node is to join the new cluster, remove its"
            " data and correct cluster_id"
        )
    ordinal = ClusterOrdinal(identity.cluster_ordinal)
    own = ClusterMarker(identity.cluster_id, ordinal, identity.namespace)
    # Every node found or put the marker before it registered, so with nodes there must be a marker.
    nodes = await _answer(lambda: client.describe_nodes(timeout_s=ASK_SECONDS_MAX))
    membership = replace(membership, has_marked=bool(nodes))
    seen = await verify_store(runtime, store, own, membership, copy)
    return Joined(own, node_id_in(ordinal, node_id), seen or (), is_checked=seen is not None)


async def verify_store(
    runtime: Runtime, store: ObjectStore, own: ClusterMarker, membership: Membership, copy: PurePath | None
) -> tuple[SeenHistory, ...] | None:
    """Check that a store belongs to this cluster. `copy` as in `join`.

    Returns:
        The records of nodes in the store; None if the store did not answer and the node starts without it.

    Raises:
        WrongClusterError: the store or the copy belongs to another cluster.
        OSError: the copy cannot be read.
    """
    if copy is not None and await _is_proven(runtime.disk, copy, own):
        return await _checked_soon(store, own, replace(membership, has_marked=True))
    seen = await _until_checked(runtime, store, own, membership)
    if copy is not None:
        try:
            await write_copy(runtime.disk, copy, own)
        except OSError as error:  # for example a full disk; the broker can start without the copy
            LOG.warning(
                "%s is not written (%s): the next start waits for the object store again", copy, error
            )
    return seen


async def check_later(runtime: Runtime, store: ObjectStore, own: ClusterMarker) -> tuple[SeenHistory, ...]:
    """Check the store as soon as it answers, for a node that started without it; return the records of nodes
    in the store.

    Raises:
        WrongClusterError: the store belongs to another cluster, or does not contain the marker that an
            earlier start found.
    """
    return await _until_checked(runtime, store, own, Membership(share_store=True, has_marked=True))


async def check_store(store: ObjectStore, own: ClusterMarker, membership: Membership) -> None:
    """Check that a store belongs to this cluster, and put the marker if it is absent.

    Raises:
        WrongClusterError: the store belongs to another cluster.
        ObjectStoreError: the store does not answer.
    """
    present = await read_marker(store, own.key)
    others = ", ".join(await other_clusters(store, own))
    if present is None and others and not membership.share_store:
        raise WrongClusterError(
            f"the object store holds {others}; the controllers serve {own}, which has no marker in it. If"
            " the controllers lost their directories, this is a new and empty cluster: "
            "stop it and mount the directories again. If two clusters are to share this store, set"
            " share_store (`ponor up --share-store`, `objectStore.shareStore` of the chart); otherwise give"
            " this cluster another prefix"
        )
    if present is None and membership.has_marked and not await read_seen(store, own.namespace):
        raise WrongClusterError(
            f"the object store has no marker {own.key}, which {own} put into its store: this is another"
            " store, or another prefix. Correct object_store. "
            f"If the objects were copied here, copy everything below {PREFIX} too"
        )
    if present is None:
        present = await put_marker(store, own)
    if present != own:
        raise WrongClusterError(
            f"namespace {own.namespace} of the object store belongs to {present}, and the controllers"
            f" serve {own}; give one of the two clusters another store"
        )
    if others:
        LOG.warning("the object store contains clusters other than %s: %s", own, others)


async def _answer(ask: Callable[[], Awaitable[A]]) -> A:
    while True:
        try:
            return await ask()
        except NoControllerError as error:
            LOG.warning("%s; asking again", error)


async def _is_proven(disk: Disk, copy: PurePath, own: ClusterMarker) -> bool:
    """Return whether an earlier process with this directory found the marker in the store."""
    try:
        found = await read_copy(disk, copy)
    except MarkerDamagedError as error:
        LOG.warning("%s; the marker in the object store is checked instead", error)
        return False
    if found not in (None, own):
        raise WrongClusterError(
            f"{copy}: this directory belongs to {found}, the controllers serve {own}. If the controllers"
            " lost their directories, stop them and mount the directories again; "
            "if this node is to join the other cluster, give it an empty directory"
        )
    return found is not None


async def _checked_soon(
    store: ObjectStore, own: ClusterMarker, membership: Membership
) -> tuple[SeenHistory, ...] | None:
    try:
        async with asyncio.timeout(STORE_SECONDS_MAX):
            return await _checked(store, own, membership)
    except (ObjectStoreError, TimeoutError) as error:
        LOG.warning(
            "the marker of %s could not be checked (%s); this node begins without it, because an earlier"
            " start found it",
            own,
            str(error) or "no answer",
        )
        return None


async def _until_checked(
    runtime: Runtime, store: ObjectStore, own: ClusterMarker, membership: Membership
) -> tuple[SeenHistory, ...]:
    logged = ""
    patience = asyncio.get_running_loop().call_later(STORE_SECONDS_MAX, LOG.warning, WAITS, own, "no answer")
    try:
        while True:
            try:
                return await _checked(store, own, membership)
            except ObjectStoreError as error:
                if str(error) != logged:
                    logged = str(error)
                    LOG.warning(WAITS, own, error)
                await runtime.clock.sleep(RETRY_SECONDS)
    finally:
        patience.cancel()


async def _checked(store: ObjectStore, own: ClusterMarker, membership: Membership) -> tuple[SeenHistory, ...]:
    await check_store(store, own, membership)
    return await read_seen(store, own.namespace)
