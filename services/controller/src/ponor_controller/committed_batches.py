"""What happens with every commit, in the order in which it must happen.

What lives here: the one listener of the consensus. First the image, and with it the answers; then the tail and whoever follows it; then the snapshot.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from operator import methodcaller
from typing import Final

from ponor_metadata.digest import running_digest
from ponor_metadata.image import MetadataImage
from ponor_runtime.telemetry import Counter, Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.proposals.proposer import Proposer
from ponor_controller.snapshotter import Snapshotter
from ponor_controller.subscriptions.retained_tail import RetainedBatch, RetainedTail
from ponor_controller.subscriptions.subscription_service import SubscriptionService

KIND_OF: Final = methodcaller("WhichOneof", "kind")


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
        self._records: dict[str | None, Counter] = {}
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

    def restart(self) -> None:
        """A received snapshot took the place of the image: everything that follows the log goes on behind it."""
        self._digest = self._image.digest
        self._tail.restart(self._image.index, self._digest)
        self._snapshotter.restarted()
        self._subscriptions.committed()

    def _count(self, entry: LogEntry) -> None:
        self._commits.add()
        for kind, count in collections.Counter(map(KIND_OF, entry.batch.records)).items():
            counter = self._records.get(kind)
            if counter is None:
                counter = self._records[kind] = self._telemetry.counter(
                    "ponor_controller_records_total", kind=kind or "unknown"
                )
            counter.add(count)
