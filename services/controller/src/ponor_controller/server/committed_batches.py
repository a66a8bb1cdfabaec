"""Pass committed batches to all parts that follow the log, in a fixed order.

The order is: the image and the answers that wait for the commit, the retained tail and its subscribers, the
snapshotter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ponor_metadata.image.batches import KINDS, contents_of, running_digest
from ponor_metadata.image.image import MetadataImage
from ponor_runtime.telemetry import Counter, Telemetry

from ponor_controller.consensus.ports import LogEntry
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.kernel.snapshotter import Snapshotter
from ponor_controller.server.subscriptions.retained_tail import RetainedBatch, RetainedTail
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService


class CommittedBatches:
    """Passes on committed entries."""

    def __init__(
        self,
        image: MetadataImage,
        proposer: Proposer,
        tail: RetainedTail,
        subscriptions: SubscriptionService,
        snapshotter: Snapshotter,
        telemetry: Telemetry,
        answered: Callable[[], None],
    ) -> None:
        self._image = image
        self._proposer = proposer
        self._tail = tail
        self._subscriptions = subscriptions
        self._snapshotter = snapshotter
        self._telemetry = telemetry
        self._answered = answered
        self._commits = telemetry.counter("ponor_controller_commits_total")
        self._records: dict[int, Counter] = {}
        self._digest = image.digest
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def on_kinds(self, kinds: Iterable[str], wake: Callable[[], None]) -> None:
        """Call `wake` after every batch with a record of one of these kinds. `wake` must not block."""
        for kind in kinds:
            self._wakes.setdefault(kind, []).append(wake)

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Apply committed entries."""
        self._proposer.committed(entries)
        self._answered()
        for entry in entries:
            self._digest = running_digest(self._digest, entry.data)
            self._tail.append(RetainedBatch(entry.index, entry.data, self._digest))
            self._count(entry)
        assert self._digest == self._image.digest, "the image and the tail have different batches"
        self._subscriptions.committed()
        self._snapshotter.committed(entries)

    def restart(self) -> None:
        """Continue after a received snapshot has replaced the image."""
        self._digest = self._image.digest
        self._tail.restart(self._image.index, self._digest)
        self._snapshotter.restarted()
        self._subscriptions.committed()

    def _count(self, entry: LogEntry) -> None:
        self._commits.add()
        index, term, kinds = contents_of(entry.data)
        assert (index, term) == (entry.index, entry.term), (
            "the index or the term in a batch differs from that of its log entry"
        )
        for number, count in kinds.items():
            kind = KINDS.get(number, "unknown")
            counter = self._records.get(number)
            if counter is None:
                counter = self._records[number] = self._telemetry.counter(
                    "ponor_controller_records_total", kind=kind
                )
            counter.add(count)
            for wake in self._wakes.get(kind, ()):
                wake()
