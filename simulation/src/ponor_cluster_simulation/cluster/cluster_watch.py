"""Observes running services: the images that they hold, and the digest of each image at every index.

The services' `app.py` creates the images itself, so a run cannot pass them in. While a watch is on, it
patches the classes that hold images: they also report new instances and every applied batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_controller.controller import Controller
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.image import MetadataImage
from ponor_raft.ready import Leadership
from ponor_simulation.loop import INCARNATION

from ponor_cluster_simulation.invariants.registry import Checks

CONTROLLER: Final = "controller"
FOLLOWER: Final = "broker"
"""Prefix of the names of processes that hold an image and follow the metadata as long as they run."""


class ClusterWatch:
    """The images of a cluster, and the checks that compare them.

    Attributes:
        controllers: the controller of each process's current life.
        followers: the subscription of each process's current life.
        digests: index to the first digest seen, which all later digests of the index must equal.
        on_batch: called with every committed batch once, in order; the ledger uses it.
    """

    def __init__(self, checks: Checks | None = None) -> None:
        self._checks = checks or Checks()
        self.controllers: dict[str, Controller] = {}
        self.followers: dict[str, SubscriptionClient] = {}
        self.digests: dict[int, bytes] = {}
        self.resets = 0
        """How often a snapshot replaced a follower's image."""
        self.leaders: dict[int, int] = {}
        """Term to the node that led it."""
        self.installs = 0
        """How often a controller installed an image from another one."""
        self.on_batch: Callable[[RecordBatch], None] = lambda _: None
        self._newest = 0
        self._applied: dict[str, int] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch within the block."""
        watch = self
        apply_committed = MetadataImage.apply_committed
        adopt = MetadataImage.adopt

        begin_controller = Controller.__init__
        begin_subscription = SubscriptionClient.__init__

        def controller_watched(controller: Controller, *args: Any, **named: Any) -> None:
            begin_controller(controller, *args, **named)
            watch.controllers[_process()] = controller
            watch.recovered(controller.image)
            controller.consensus.on_leadership(watch.led)

        def subscription_watched(subscription: SubscriptionClient, *args: Any, **named: Any) -> None:
            begin_subscription(subscription, *args, **named)
            if _process().startswith(FOLLOWER):
                watch.followers[_process()] = subscription
                watch.follow(subscription)

        def apply_watched(
            image: MetadataImage, encoded: bytes, batch: RecordBatch | None = None
        ) -> RecordBatch:
            applied = apply_committed(image, encoded, batch)
            watch.applied(image, applied)
            return applied

        def adopt_watched(image: MetadataImage, other: MetadataImage) -> None:
            adopt(image, other)
            watch.installed(image)

        def replay_watched(image: MetadataImage, encoded: bytes) -> None:
            apply_watched(image, encoded)

        with (
            patch.object(Controller, "__init__", controller_watched),
            patch.object(SubscriptionClient, "__init__", subscription_watched),
            patch.object(MetadataImage, "apply_committed", apply_watched),
            patch.object(MetadataImage, "adopt", adopt_watched),
            patch.object(MetadataImage, "replay", replay_watched),
        ):
            yield

    @property
    def controller(self) -> Controller | None:
        """The newest controller that was built; None before the first."""
        return next(reversed(self.controllers.values()), None)

    @property
    def follower(self) -> SubscriptionClient | None:
        """The newest subscription of a broker; None before the first."""
        return next(reversed(self.followers.values()), None)

    def follow(self, subscription: SubscriptionClient) -> None:
        """Check every image that a subscription publishes, and that its index never decreases."""
        shown = 0

        def batch_shown(batch: RecordBatch) -> None:
            nonlocal shown
            self._checks.require(
                28, batch.index == shown + 1, f"{_process()} received batch {batch.index} after batch {shown}"
            )
            shown = batch.index

        def image_shown(image: MetadataImage) -> None:
            nonlocal shown
            self.resets += 1
            self._checks.require(
                28,
                image.index >= shown,
                f"the image of {_process()} went back from index {shown} to {image.index}",
            )
            shown = image.index
            self.saw(image, 10)

        subscription.listeners.append(batch_shown)
        subscription.image_listeners.append(image_shown)

    def recovered(self, image: MetadataImage) -> None:
        """Check the image with which a controller starts."""
        self.saw(image, 10)

    def installed(self, image: MetadataImage) -> None:
        """Check an image that a controller installed from another one."""
        self.installs += 1
        self.saw(image, 10)
        self._moved(image.index)

    def led(self, leadership: Leadership) -> None:
        """Check a leader that a controller recognises."""
        if leadership.leader is not None:
            known = self.leaders.setdefault(leadership.term, leadership.leader.node_id)
            same = known == leadership.leader.node_id
            self._checks.require(
                1, same, f"term {leadership.term} has two leaders: {known} and {leadership.leader.node_id}"
            )

    def applied(self, image: MetadataImage, batch: RecordBatch) -> None:
        """Check an image after a batch."""
        self.saw(image, 28)
        life = INCARNATION.get()
        if life is not None and life.name.startswith(CONTROLLER):
            self._moved(image.index)
        if image.index > self._newest:
            self._newest = image.index
            self.on_batch(batch)

    def _moved(self, index: int) -> None:
        """Check the indexes of the running controller, whose image is at `index`."""
        life = INCARNATION.get()
        assert life is not None
        before = self._applied.get(life.name, 0)
        self._checks.require(4, index > before, f"{life.name} applied index {index} after index {before}")
        self._applied[life.name] = index
        controller = self.controllers.get(_process())
        if controller is not None and controller.image.index == index:
            node = controller.driver.node
            in_order = index <= node.commit_index <= node.last_index
            self._checks.require(
                6,
                in_order,
                f"{life.name}: applied index {index}, commit index {node.commit_index}, last index"
                f" {node.last_index}",
            )

    def saw(self, image: MetadataImage, number: int = 3) -> None:
        """Compare an image with all images seen at the same index.

        Args:
            image: of any process.
            number: the invariant that the comparison checks.

        Raises:
            InvariantBrokenError: another image had other contents at this index.
        """
        if image.index:
            digest = image.digest
            known = self.digests.setdefault(image.index, digest)
            self._checks.require(number, known == digest, f"two histories at index {image.index}")


def _process() -> str:
    life = INCARNATION.get()
    return "no process" if life is None else life.name.partition("#")[0]
