"""The process of a node that serves no clients: the garbage collector or a compactor.

Its configuration file is a JSON object that `ponor up` writes:

    {"node_id": N, "controllers": ["HOST:PORT"], "object_store": URL, "cluster_id": ID,
     "share_store": true | false, "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE}}

`node_id`, `controllers` and `object_store` are required. `data` is accepted and ignored: the process stores
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ponor_runtime.configuration_file import ConfigurationFile, ServiceConfiguration
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.client.joining import ANY_CLUSTER, Joined, Membership, join
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.readiness import require_session
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole

INCARNATION_BYTES: Final = 16
NODE_ID_MAX: Final = (1 << 30) - 1
NODE_KEYS: Final = ("cluster_id", "controllers", "data", "node_id", "object_store", "share_store")
SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options that differ between processes. A `node_id` below 2^16 is combined with the cluster's
    ordinal.
    """

    node_id: NodeId
    controllers: tuple[str, ...]
    membership: Membership = ANY_CLUSTER
    object_store: str = ""
    """URL of the store; the store itself is an argument of `run`."""


def read_node_configuration(
    path: Path, settings: type[SettingsT]
) -> ServiceConfiguration[NodeOptions, SettingsT]:
    """Read and validate a configuration file.

    Raises:
        StartRefusedError: the file is invalid; the message names the problem.
        SettingError: a setting is invalid; the message names it.
    """
    file = ConfigurationFile(path, NODE_KEYS)
    return file.configuration(node_options(file), settings)


def node_options(file: ConfigurationFile) -> NodeOptions:
    """Return the options that all nodes have.

    Raises:
        StartRefusedError: an option is missing or invalid.
    """
    controllers = file.content.get("controllers")
    if (
        not isinstance(controllers, list)
        or not controllers
        or not all(isinstance(each, str) for each in controllers)
    ):
        raise file.refused("'controllers' must be a list of HOST:PORT, with at least one")
    return NodeOptions(
        NodeId(file.integer("node_id", 0, NODE_ID_MAX)),
        tuple(controllers),
        Membership(file.text("cluster_id", default=""), file.flag("share_store")),
        file.text("object_store", "file:///DIR or s3://BUCKET/PREFIX"),
    )


async def run_node(
    runtime: Runtime,
    role: NodeRole,
    options: NodeOptions,
    store: ObjectStore,
    stop: asyncio.Event,
    *,
    begin: Callable[[SessionClient, Joined, BackgroundTasks], None],
    ready: Callable[[ServiceAddresses], None],
) -> None:
    """Join the cluster, register the node, call `begin` and `ready`, and wait for `stop`.

    `begin` starts the background tasks of the service; they are ended when this function returns.

    Raises:
        WrongClusterError: controllers, store and configuration belong to different clusters.
        NodeFencedError: another process registered under the node id.
        OperationError: the controller refuses this node; the message gives the reason.
    """
    joined = await join(runtime, options.controllers, options.node_id, options.membership, store, stop)
    if joined is None:
        return
    session = _session(runtime, role, options, joined)
    require_session(runtime.health, session)
    loop, name = asyncio.get_running_loop(), role.name.lower()
    conversation = loop.create_task(session.run(), name=f"{name}-session")
    stopping = loop.create_task(stop.wait(), name=f"{name}-stop")
    registering = loop.create_task(session.ready(), name=f"{name}-register")
    tasks = BackgroundTasks(runtime.fail_stop)
    try:
        await asyncio.wait((conversation, stopping, registering), return_when=asyncio.FIRST_COMPLETED)
        if registering.done() and registering.exception() is None:
            begin(session, joined, tasks)
            ready({})
            await asyncio.wait((conversation, stopping), return_when=asyncio.FIRST_COMPLETED)
        if conversation.done():
            conversation.result()
        if session.fenced.is_set():
            raise NodeFencedError(f"another process registered as node {joined.node_id}; stopping")
    finally:
        await tasks.close()
        await session.close()
        for task in (conversation, stopping, registering):
            task.cancel()
        await asyncio.gather(conversation, stopping, registering, return_exceptions=True)


async def until_fenced(work: Awaitable[None]) -> None:
    """Await `work` and ignore its NodeFencedError: `run_node` also detects it and ends the process."""
    with suppress(NodeFencedError):
        await work


def _session(runtime: Runtime, role: NodeRole, options: NodeOptions, joined: Joined) -> SessionClient:
    identity = NodeIdentity(
        joined.node_id,
        role,
        runtime.randomness.token(INCARNATION_BYTES),
        cluster_id=joined.marker.cluster_id,
        seen=joined.seen,
    )
    return SessionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        identity=identity,
        addresses=options.controllers,
    )
