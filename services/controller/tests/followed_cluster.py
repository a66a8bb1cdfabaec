"""Controllers that serve subscriptions of one history, each up to its own commit index. The
scenario decides which one leads or is isolated.

Subscription service, tail and images are real. The history replaces consensus: an index is
committed when the history has it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ponor.common.v1 import error_pb2
from ponor.metadata.v1 import records_pb2 as pb
from ponor_controller.kernel.leading import LeaderTerm
from ponor_controller.server.subscriptions.image_source import ImageSource
from ponor_controller.server.subscriptions.retained_tail import RetainedBatch, RetainedTail
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image.batches import EMPTY_DIGEST
from ponor_metadata.image.image import MetadataImage
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import SUBSCRIBE
from ponor_runtime.observer_clock import ObserverClock
from ponor_runtime.runtime import Runtime

CLUSTER_ID = "c-1"
SETTINGS = ControllerSettings(
    session_timeout_ms=2_000, progress_interval_ms=200, resume_wait_ms_max=500, retained_batches_max=400
)


class History:
    """Committed batches in order, with the digest and the time of every index."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.image = MetadataImage()
        self.batches: list[bytes] = []
        self.digests = [EMPTY_DIGEST]
        self.committed_at = [0.0]
        self.commit(
            pb.Record(
                cluster_formatted=pb.ClusterFormatted(cluster_id=CLUSTER_ID, cluster_ordinal=1, namespace="n")
            )
        )

    @property
    def index(self) -> int:
        """The newest committed index."""
        return len(self.batches)

    def commit(self, *records: pb.Record) -> None:
        index = self.index + 1
        batch = pb.RecordBatch(index=index, term=1, cluster_time_ms=index, records=records)
        encoded = batch.SerializeToString(deterministic=True)
        self.image.apply_committed(encoded, batch)
        self.batches.append(encoded)
        self.digests.append(self.image.digest)
        self.committed_at.append(self._now())

    def put(self, chance: random.Random) -> None:
        """Commit a key."""
        size = chance.choice((1, 1, 100, 5_000))
        key = f"k{chance.randrange(200)}-{self.index}"
        self.commit(pb.Record(key_put=pb.KeyPut(key=key, value=bytes(size))))

    def index_at(self, moment: float) -> int:
        """The newest index that was committed at a time."""
        index = self.index
        while index and self.committed_at[index] > moment:
            index -= 1
        return index


@dataclass
class FollowedController:
    """One controller. Implements `Leading` for its services.

    Attributes: hears: whether it receives commits. leads: whether it leads, and so receives commits
    immediately. begin_index: start of the tail after a restart; earlier batches were compacted.
    restart_index: the commit index at a restart. Commit indices are not durable, so it may be an older one.
    """

    address: str
    history: History
    hears: bool = True
    leads: bool = False
    begin_index: int = 0
    restart_index: int = 0
    tail: RetainedTail | None = field(default=None, init=False)
    service: SubscriptionService | None = field(default=None, init=False)
    _runtime: Runtime | None = field(default=None, init=False)
    _heard_ns: int = field(default=0, init=False)

    async def run(self, runtime: Runtime) -> None:
        """The program of its process: recover, serve, follow the history."""
        self._runtime = runtime
        image = MetadataImage()
        tail = RetainedTail(
            self.begin_index,
            self.history.digests[self.begin_index],
            bytes_max=4 * 1024 * 1024,
            batches_max=SETTINGS.retained_batches_max,
        )
        self._heard_ns = runtime.clock.monotonic_ns()
        service = SubscriptionService(
            tail,
            ImageSource(image, runtime.clock),
            self,
            cluster_id=CLUSTER_ID,
            cluster_time_ms=lambda: image.cluster_time_ms,
            settings=SETTINGS,
            telemetry=runtime.telemetry,
            observed=ObserverClock(runtime.clock),
        )
        self._catch_up(image, tail, max(self.restart_index, self.begin_index))
        self.tail, self.service = tail, service
        await runtime.network.listen(self.address, {SUBSCRIBE: service.handle})
        while True:
            if self.hears or self.leads:
                self._heard_ns = runtime.clock.monotonic_ns()
                if tail.last_index < self.history.index:
                    self._catch_up(image, tail, self.history.index)
                    service.committed()
            await asyncio.sleep(0.001 if self.leads else 0.02)

    def _catch_up(self, image: MetadataImage, tail: RetainedTail, index: int) -> None:
        while image.index < index:
            encoded = self.history.batches[image.index]
            image.apply_committed(encoded)
            if image.index > tail.last_index:
                tail.append(RetainedBatch(image.index, encoded, image.digest))

    @property
    def is_leading(self) -> bool:
        return self.leads

    @property
    def leader_term(self) -> LeaderTerm | None:
        return None

    def term_at(self, index: int) -> int | None:
        return None

    @property
    def leader_address(self) -> str:
        return ""

    @property
    def commit_age_ms(self) -> int:
        assert self._runtime is not None
        return (self._runtime.clock.monotonic_ns() - self._heard_ns) // 1_000_000

    def on_change(self, listener: Callable[[], None]) -> None:
        """Not used by subscriptions."""

    async def read_index(self) -> int:
        if not (self.hears or self.leads):
            await asyncio.sleep(0.3)
            raise OperationError(error_pb2.ERROR_CODE_NOT_LEADER, "no leader answers")
        await asyncio.sleep(0.005)
        return self.history.index
