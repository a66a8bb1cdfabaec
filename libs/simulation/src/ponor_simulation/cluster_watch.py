"""What the processes of a simulated cluster believe: the images that they hold, and the digests that these had at every index.

What lives here: a look into running services. `ponor_controller.app` and `ponor_broker.app` build their parts themselves; while a watch is on, the two classes
that hold images report themselves when they are built. Nothing of what they do is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ponor_controller.app import Controller
from ponor_metadata.image import MetadataImage
from ponor_metadata.subscription import SubscriptionClient


class ClusterWatch:
    """See the module's docstring.

    Attributes:
        controller: the controller of the present life.
        follower: the broker's subscription in its present life.
        digests: index to digest, from whoever showed it first; all others must agree, in this and in every later life.
    """

    def __init__(self) -> None:
        self.controller: Controller | None = None
        self.follower: SubscriptionClient | None = None
        self.digests: dict[int, bytes] = {}
        self.resets = 0
        """How often a follower's image was replaced by a snapshot."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch within the block."""
        watch = self

        class WatchedController(Controller):
            def __init__(self, *args: Any, **named: Any) -> None:
                super().__init__(*args, **named)
                watch.controller = self
                watch.saw(self.image)

        class WatchedSubscription(SubscriptionClient):
            def __init__(self, **named: Any) -> None:
                super().__init__(**named)
                watch.follower = self
                watch.follow(self)

        with (
            patch("ponor_controller.app.Controller", WatchedController),
            patch("ponor_broker.app.SubscriptionClient", WatchedSubscription),
        ):
            yield

    def follow(self, subscription: SubscriptionClient) -> None:
        """Compare every state that a subscription shows."""
        subscription.listeners.append(lambda _: self.saw(subscription.image))
        subscription.image_listeners.append(self._replaced)

    def saw(self, image: MetadataImage) -> None:
        """An image as it is now.

        Raises:
            AssertionError: somebody had other contents at this index: a committed prefix changed.
        """
        if image.index:
            known = self.digests.setdefault(image.index, image.digest)
            assert known == image.digest, f"two histories at index {image.index}"

    def _replaced(self, image: MetadataImage) -> None:
        self.resets += 1
        self.saw(image)
