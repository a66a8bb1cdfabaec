"""Planted bug: a controller that is behind serves subscribers what it has, and they take it: readers go back in time (etcd-io/etcd #15271)."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_controller.server.subscriptions.subscriber import Subscriber
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_metadata.followed_image import FollowedImage, _SnapshotInTransit
from ponor_metadata.image import MetadataImage


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    send, end_snapshot = SubscriptionService._send, FollowedImage.end_snapshot

    async def send_what_is_here(
        self: SubscriptionService, subscriber: Subscriber, start: wire.SubscribeStart
    ) -> None:
        if max(start.resume_index, start.seen_index) > self._tail.last_index:
            start = wire.SubscribeStart(cluster_id=start.cluster_id, incarnation=start.incarnation)
        await send(self, subscriber, start)

    def begin_any(self: FollowedImage, begin: wire.SnapshotBegin) -> None:
        self._snapshot = _SnapshotInTransit(begin)

    async def end_any(self: FollowedImage, end: wire.SnapshotEnd) -> None:
        self._image = MetadataImage()
        await end_snapshot(self, end)

    monkeypatch.setattr(SubscriptionService, "_send", send_what_is_here)
    monkeypatch.setattr(FollowedImage, "begin_snapshot", begin_any)
    monkeypatch.setattr(FollowedImage, "end_snapshot", end_any)
