"""The metadata for a while: followed until they are current, read, and let go.

What lives here: one subscription that lives as long as one question, or one round of questions. The collector asks rarely; in between it need not keep what a
cluster of a million objects has to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from ponor_metadata.errors import MetadataLagError
from ponor_metadata.image import MetadataImage
from ponor_metadata.subscription import SubscriptionClient
from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry

CURRENT_MS_MAX: Final = 60_000

ReadImage = Callable[[], Awaitable[MetadataImage]]
"""The metadata as committed at a moment after the call, a linearizable read; raises `MetadataLagError` when nobody can tell. What it returns goes on being current."""
FollowImage = Callable[[], AbstractAsyncContextManager[ReadImage]]
"""Begins to follow the metadata, and ends it."""


@asynccontextmanager
async def followed_image(
    runtime: Runtime, controllers: Sequence[str], cluster_id: str
) -> AsyncIterator[ReadImage]:
    """Follow the metadata for a while; every call of what this yields raises:

    MetadataLagError: no majority of controllers tells within a minute what is committed.
    HistoryReplacedError: a forced recovery began another history meanwhile: what was concluded before may not hold.
    OperationError: no controller accepts this subscriber.
    """
    subscription = SubscriptionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=Telemetry(),  # its gauges would outlive it
        addresses=controllers,
        cluster_id=cluster_id,
    )
    loop = asyncio.get_running_loop()
    following = loop.create_task(subscription.run(), name="gc-image")

    async def current() -> MetadataImage:
        reading = loop.create_task(subscription.wait_current(CURRENT_MS_MAX), name="gc-read-index")
        try:
            await asyncio.wait((following, reading), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
                raise MetadataLagError("the metadata are followed no more")
            reading.result()
            return subscription.image
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    try:
        yield current
    finally:
        await subscription.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def read_image(runtime: Runtime, controllers: Sequence[str], cluster_id: str) -> MetadataImage:
    """The image as committed at a moment after this call.

    Raises:
        MetadataLagError, OperationError: as `followed_image`.
    """
    async with followed_image(runtime, controllers, cluster_id) as current:
        return await current()
