"""Snapshots on their way to followers that need what is not in the log any more.

What lives here: reading the asked-for piece of a snapshot file. Which piece, and how often, is the core's to say.
"""

from __future__ import annotations

from typing import Final

from ponor_raft.entry import SnapshotMeta
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import SnapshotChunk
from ponor_raft.ready import SendSnapshot
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.peers import Peers
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_format import SnapshotHeader

CHUNK_BYTES: Final = 1024 * 1024
SENDS_MAX: Final = 16
"""Reads of snapshot files under way; the core asks again for what is skipped."""


class SnapshotSending:
    """Answers `SendSnapshot`."""

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
            return  # a newer one took its place; the core asks again
        finally:
            self._sends -= 1
        meta: SnapshotMeta = header.meta
        self._peers.send([SnapshotChunk(self._own, request.to, request.term, meta, offset, data)])

    def _choose(self, index: int) -> SnapshotHeader | None:
        kept = (self._log.newest, self._log.tail_begin)
        return next((each for each in kept if each is not None and each.index == index), self._log.newest)
