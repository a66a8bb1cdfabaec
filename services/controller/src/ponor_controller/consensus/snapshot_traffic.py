"""Send and receive snapshots, and install a received one.

The Raft core decides which piece to send. When a received file is durable, the Raft core, the log and the
image are restarted from the snapshot in one step, without yielding to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_raft.entry import SnapshotMeta
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

CHUNK_BYTES: Final = 1024 * 1024
SENDS_MAX: Final = 16
"""Bound of concurrent reads of snapshot files. Requests above it are skipped; the Raft core repeats them."""


class SnapshotSending:
    """Handles `SendSnapshot` instructions."""

    def __init__(self, own: ReplicaId, log: RecordLog, peers: Peers, tasks: BackgroundTasks) -> None:
        self._own = own
        self._log = log
        self._peers = peers
        self._tasks = tasks
        self._sends = 0

    def send(self, request: SendSnapshot) -> None:
        """Read and send one piece."""
        header = self._choose(request.index)
        if header is None or self._sends >= SENDS_MAX or self._tasks.is_closed:
            return
        offset = request.offset if request.index in (0, header.index) else 0
        self._sends += 1
        self._tasks.spawn(self._send(request, header, offset), f"snapshot-to-{request.to.node_id}")

    async def _send(self, request: SendSnapshot, header: SnapshotHeader, offset: int) -> None:
        try:
            length = min(CHUNK_BYTES, header.size_bytes - offset)
            data = await self._log.snapshots.read_range(header, offset, length) if length > 0 else b""
        except FileNotFoundError:
            return  # a newer snapshot replaced the file; the core repeats the request
        finally:
            self._sends -= 1
        meta: SnapshotMeta = header.meta
        self._peers.send([SnapshotChunk(self._own, request.to, request.term, meta, offset, data)])

    def _choose(self, index: int) -> SnapshotHeader | None:
        kept = (self._log.newest, self._log.tail_begin)
        return next((each for each in kept if each is not None and each.index == index), self._log.newest)


RELEASED_AT_ONCE: Final = 16
"""Blocks of a replaced image that are freed in one turn of the event loop, which takes at most a
millisecond."""


class SnapshotTraffic:
    """Implements `raft_driver.SnapshotTraffic`.

    `installed` is called with the received image and exchanges its content with that of the present image.
    """

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
        """Receive until cancelled."""
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
        # `image` is now the replaced image, or an unused one. Freeing a million rows at once would block the
        # loop.
        for step, _ in enumerate(image.release()):
            if step % RELEASED_AT_ONCE == 0:
                await self._clock.sleep(0)
