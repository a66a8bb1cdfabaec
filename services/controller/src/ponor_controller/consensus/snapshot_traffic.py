"""Snapshots between controllers: the two directions, and what happens once one has arrived.

What lives here: the order of installing a received snapshot. The file is durable; then, in one step without a pause, the core begins there, the log begins there, and whoever holds
the image is given the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import SnapshotChunk
from ponor_raft.ready import SendSnapshot
from ponor_runtime.clock import Clock
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.peers import Peers
from ponor_controller.consensus.raft_driver import RaftDriver
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_format import SnapshotHeader
from ponor_controller.consensus.snapshot_receiving import SnapshotReceiving
from ponor_controller.consensus.snapshot_sending import SnapshotSending

RELEASED_AT_ONCE: Final = 16
"""Blocks of a replaced image that are freed in one turn of the loop: a millisecond at most."""


class SnapshotTraffic:
    """Fulfils `raft_driver.SnapshotTraffic`. `installed` is called with the image that takes the place of the present one, and leaves in it what was there."""

    def __init__(
        self,
        own: ReplicaId,
        log: RecordLog,
        driver: RaftDriver,
        peers: Peers,
        tasks: BackgroundTasks,
        clock: Clock,
        installed: Callable[[MetadataImage], None],
    ) -> None:
        self._log = log
        self._driver = driver
        self._installed = installed
        self._clock = clock
        self._sending = SnapshotSending(own, log, peers, tasks)
        self._receiving = SnapshotReceiving(log.snapshots, clock, driver.keep_chunk, self._install)

    def send(self, request: SendSnapshot) -> None:
        self._sending.send(request)

    def receive(self, chunk: SnapshotChunk) -> None:
        self._receiving.receive(chunk)

    async def run(self) -> None:
        """Receive for ever."""
        await self._receiving.run()

    async def _install(self, header: SnapshotHeader, image: MetadataImage) -> None:
        newer = self._driver.restore(header.meta)
        if newer:
            if self._driver.node.first_index > header.index:
                self._log.begin_after(header)
            else:
                self._log.skip_to(header)
            self._installed(image)
        await self._log.snapshots.drop_old()
        # By now this is the image that was replaced, or one that nobody needs: freed at once, a million rows hold up everything else.
        for step, _ in enumerate(image.release()):
            if step % RELEASED_AT_ONCE == 0:
                await self._clock.sleep(0)
