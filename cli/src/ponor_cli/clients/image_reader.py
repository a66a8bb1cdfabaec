"""Read the committed metadata of a cluster, or its object store, for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ponor_metadata.client import image_reading
from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.image.image import MetadataImage
from ponor_rpc.errors import OperationError
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from s3stream.stores.open_store import open_object_store

from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.errors import CommandError
from ponor_cli.local.command_runtime import command_runtime

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
    try:
        async with command_runtime() as runtime:
            return await image_reading.read_image(runtime, controllers, deadline_ms=CURRENT_MS_MAX)
    except MetadataLagError as error:
        where = ", ".join(controllers)
        raise CommandError(
            f"the controllers at {where} did not confirm the metadata; is a majority of them running?"
        ) from error
    except OperationError as error:
        raise CommandError(f"the controller refused the request: {error}") from error


async def _use_store(
    cluster: ClusterAddress, environment: dict[str, str], work: Callable[[ObjectStore], Awaitable[T]]
) -> T:
    try:
        async with command_runtime() as runtime:
            store = await open_object_store(cluster.object_store, runtime=runtime, environment=environment)
            try:
                return await work(store)
            finally:
                await store.close()
    except ObjectStoreError as error:
        raise CommandError(f"object store {cluster.object_store}: {error}") from error
