"""Read the committed metadata of a cluster, or its object store, for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.image import MetadataImage
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.open_store import open_object_store

from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.errors import CommandError

T = TypeVar("T")
CURRENT_MS_MAX = 20_000


def image_of(cluster: ClusterAddress) -> MetadataImage:
    """Return the metadata with everything that was committed before this call.

    Raises:
        CommandError: no majority of the controllers answers.
    """
    return asyncio.run(read_image(cluster.controllers))


def with_store(
    cluster: ClusterAddress, environment: dict[str, str], work: Callable[[ObjectStore], Awaitable[T]]
) -> T:
    """Run `work` with the cluster's object store.

    Raises:
        CommandError: the store refuses or does not answer.
    """
    return asyncio.run(_use_store(cluster, environment, work))


async def read_image(controllers: Sequence[str]) -> MetadataImage:
    """Return the metadata, as `image_of`, on the running event loop."""
    runtime = system_runtime()
    subscription = SubscriptionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        addresses=controllers,
    )
    following = asyncio.create_task(subscription.run())
    reading = asyncio.create_task(subscription.wait_current(deadline_ms=CURRENT_MS_MAX))
    try:
        await asyncio.wait((following, reading), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
    except MetadataLagError as error:
        where = ", ".join(controllers)
        raise CommandError(
            f"no majority of controllers answers at {where}; is the cluster running?"
        ) from error
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await subscription.close()
    try:
        await following
    except OperationError as error:
        raise CommandError(f"the controller refuses: {error}") from error
    return subscription.image


async def _use_store(
    cluster: ClusterAddress, environment: dict[str, str], work: Callable[[ObjectStore], Awaitable[T]]
) -> T:
    try:
        store = await open_object_store(
            cluster.object_store, runtime=system_runtime(), environment=environment
        )
        try:
            return await work(store)
        finally:
            await store.close()
    except ObjectStoreError as error:
        raise CommandError(f"object store {cluster.object_store}: {error}") from error


def system_runtime() -> Runtime:
    """Return the ports of a command to the outside world."""

    def fail_stop(what: str, error: BaseException) -> NoReturn:
        raise CommandError(f"{what}: {error}") from error

    return Runtime(SystemClock(), SystemRandomness(), SystemDisk(), GrpcNetwork(), Telemetry(), fail_stop)
