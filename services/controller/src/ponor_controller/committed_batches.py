"""What happens with every commit, in the order in which it must happen.

What lives here: the one listener of the consensus. First the image, and with it the answers; then the tail and whoever follows it; then the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_metadata.digest import running_digest
from ponor_metadata.image import MetadataImage
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.proposals.proposer import Proposer
from ponor_controller.snapshotter import Snapshotter
from ponor_controller.subscriptions.retained_tail import RetainedBatch, RetainedTail
from ponor_controller.subscriptions.subscription_service import SubscriptionService


class CommittedBatches:
    """Hands committed entries on."""

    def __init__(
        self,
        image: MetadataImage,
        proposer: Proposer,
        tail: RetainedTail,
        subscriptions: SubscriptionService,
        snapshotter: Snapshotter,
        telemetry: Telemetry,
    ) -> None:
        self._image = image
        self._proposer = proposer
        self._tail = tail
        self._subscriptions = subscriptions
        self._snapshotter = snapshotter
        self._telemetry = telemetry
        self._commits = telemetry.counter("ponor_controller_commits_total")
        self._digest = image.digest

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Fold entries into everything that follows the log."""
        self._proposer.committed(entries)
        for entry in entries:
            self._digest = running_digest(self._digest, entry.data)
            self._tail.append(RetainedBatch(entry.index, entry.data, self._digest))
            self._count(entry)
        assert self._digest == self._image.digest, "the image and the tail saw the same batches"
        self._subscriptions.committed()
        self._snapshotter.committed(entries)

    def _count(self, entry: LogEntry) -> None:
        self._commits.add()
        for record in entry.batch.records:
            kind = record.WhichOneof("kind") or "unknown"
            self._telemetry.counter("ponor_controller_records_total", kind=kind).add()
