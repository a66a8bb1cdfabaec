"""Short-lived subscriptions to the metadata, for commands and for the garbage collector.

These processes read the metadata rarely. They subscribe for one read or one round of work and then drop the
image, because the image of a cluster with a million objects is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry

from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.image import MetadataImage

CURRENT_MS_MAX: Final = 60_000

ReadImage = Callable[[], Awaitable[MetadataImage]]
"""Performs a linearizable read of the metadata. The returned image continues to be updated. Raises
`MetadataLagError` on a timeout."""
FollowImage = Callable[[], AbstractAsyncContextManager[ReadImage]]
"""Opens a subscription to the metadata for the duration of the context."""


@asynccontextmanager
async def followed_image(
    runtime: Runtime, controllers: Sequence[str], cluster_id: str = "", *, deadline_ms: int = CURRENT_MS_MAX
) -> AsyncIterator[ReadImage]:
    """Subscribe to the metadata and yield a function that reads the current image.

    Without `cluster_id` any cluster is accepted.

    Calls of the yielded function raise:
        MetadataLagError: no majority of the controllers confirmed the committed index within `deadline_ms`.
        HistoryReplacedError: a forced recovery replaced the history, so earlier conclusions may be wrong.
        OperationError: no controller accepts this subscriber.
    """
    subscription = SubscriptionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=Telemetry(),  # not the process's, because gauges would outlive the subscription
        addresses=controllers,
        cluster_id=cluster_id,
    )
    loop = asyncio.get_running_loop()
    following = loop.create_task(subscription.run(), name="image")

    async def current() -> MetadataImage:
        reading = loop.create_task(subscription.wait_current(deadline_ms), name="read-index")
        try:
            await asyncio.wait((following, reading), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
                raise MetadataLagError("the subscription to the metadata ended")
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


async def read_image(
    runtime: Runtime, controllers: Sequence[str], cluster_id: str = "", *, deadline_ms: int = CURRENT_MS_MAX
) -> MetadataImage:
    """Return the image as of a committed index at or after this call (a linearizable read).

    Raises:
        MetadataLagError, OperationError: as `followed_image`.
    """
    async with followed_image(runtime, controllers, cluster_id, deadline_ms=deadline_ms) as current:
        return await current()
