"""Takeover: a process of another node, or the node's next process, recovers the log that a process left in
the object store.

    walk and fence → filter → upload and commit, with the trim point → close the streams → close the log →
    delete the slots, never the fence

The controller names the log and its trim point (rule R5) and refuses all operations of the old owner from
then on (R6). Each stream's end offset and epoch decide what may be committed (R7). Every step can be repeated
by any process: the fence at the end of the log stays, commits move the ends of the streams, closed streams
are skipped. A second recoverer gets `WalNotHeldError` or finds everything done.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final

from ponor_runtime.object_store import ObjectStore
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import turn

from s3stream.errors import CommitRefusedError, StreamFencedError, WalCorruptError, WalNotHeldError
from s3stream.object_upload import ObjectUploader
from s3stream.object_wal.slot import LABEL_BYTES
from s3stream.object_wal.slot_deletion import LINGER_S, delete_recovered
from s3stream.object_wal.walk import WalWalk
from s3stream.ports import ObjectManager, OpenWal, StreamManager, StreamState, WalManager
from s3stream.recovery import (
    RECORDS_PER_TURN,
    RecoveryFilter,
    RecoveryReport,
    UploadChunk,
    Verdict,
    close_recovered,
)
from s3stream.settings import StorageSettings

LOG = logging.getLogger(__name__)
ROUNDS_MAX: Final = 5
"""How often a recovery restarts when another process changed the streams in the meantime."""

ROUND_WAIT_S: Final = 0.2
"""Wait before a new round, so that the image can show the changes."""


async def recover_wal(
    *,
    runtime: Runtime,
    store: ObjectStore,
    wal: OpenWal,
    manager: WalManager,
    streams: StreamManager,
    objects: ObjectManager,
    settings: StorageSettings,
    tasks: BackgroundTasks | None = None,
) -> RecoveryReport:
    """Recover one log that the controller assigned to this process.

    Args:
        runtime: ports of this process.
        store: with retries and limits.
        wal: the log and its trim point, from an image that shows the assignment.
        manager: see the port.
        streams: see the port.
        objects: see the port.
        settings: storage settings.
        tasks: runs the deletion of slots in the background, because opening the partitions is more urgent.
            None: slots are deleted before this function returns.

    Raises:
        WalNotHeldError: another process recovers the log now, or has recovered it.
        WalCorruptError: an acknowledged slot or record is missing or damaged; neither it nor
            anything after it was committed. An operator must act.
        ObjectStoreError: the store did not answer; retry.
    """
    counts = {
        result: runtime.telemetry.counter("ponor_wal_recoveries_total", result=result)
        for result in ("done", "lost", "failed")
    }
    takeover = _Takeover(runtime, store, wal, manager, streams, objects, settings, tasks)
    try:
        with runtime.telemetry.span("ponor.recovery"):
            report = await takeover.run()
    except WalNotHeldError:
        counts["lost"].add(1)
        raise
    except Exception:
        counts["failed"].add(1)
        raise
    counts["done"].add(1)
    return report


class _Takeover:
    """One recovery of one log, in one or more rounds."""

    def __init__(
        self,
        runtime: Runtime,
        store: ObjectStore,
        wal: OpenWal,
        manager: WalManager,
        streams: StreamManager,
        objects: ObjectManager,
        settings: StorageSettings,
        tasks: BackgroundTasks | None,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._store = store
        self._wal = wal
        self._manager = manager
        self._streams = streams
        self._settings = settings
        self._uploader = ObjectUploader(runtime, store, objects, settings, recovered=wal.name)

    async def run(self) -> RecoveryReport:
        """Repeat rounds until one succeeds.

        A missing slot, or a refused commit or close, may mean that another recoverer is ahead. In that
        case the image shows that the ends of the streams changed, and a new round begins from them.
        If they did not change, the error is raised.
        """
        for _ in range(ROUNDS_MAX):
            owned = self._manager.streams_of(self._wal.name)
            try:
                return await self._round(owned)
            except (WalCorruptError, CommitRefusedError, StreamFencedError) as error:
                await self._runtime.clock.sleep(ROUND_WAIT_S)
                if self._manager.streams_of(self._wal.name) == owned:
                    raise
                LOG.warning("recovery of %s restarts: %s", self._wal.name, error)
        raise WalNotHeldError(f"{self._wal.name}: other processes repeatedly recovered this log; giving up")

    async def _round(self, owned: list[StreamState]) -> RecoveryReport:
        clock, settings = self._runtime.clock, self._settings
        started_ns = clock.monotonic_ns()
        walk = WalWalk(
            store=self._store,
            wal=self._wal,
            randomness=self._runtime.randomness,
            telemetry=self._runtime.telemetry,
            hedge_ms=settings.wal_hedge_ms,
            reads_in_flight_max=settings.recovery_reads_in_flight_max,
            bytes_in_flight_max=settings.recovery_chunk_bytes_max,
        )
        judge = RecoveryFilter(owned)
        chunk = UploadChunk(self._uploader, settings)
        counts = dict.fromkeys(Verdict, 0)
        read = 0
        async with aclosing(walk.slots()) as slots:
            async for slot in slots:
                for record in slot.records or ():
                    read += 1
                    if read % RECORDS_PER_TURN == 0:  # slots that were read ahead arrive without a pause
                        await turn()
                    verdict = judge.judge(record)
                    counts[verdict] += 1
                    if verdict is Verdict.UPLOAD:
                        chunk.add(record)
                if chunk.is_full:
                    await chunk.upload(trim_sequence=slot.label.sequence + 1)
        await chunk.upload(trim_sequence=walk.end_sequence)
        states = judge.closed_states()
        await close_recovered(self._streams, states, recovered=self._wal.name)
        await self._manager.close_wal(self._wal.name, walk.end_sequence)
        report = RecoveryReport(
            records=counts[Verdict.UPLOAD],
            bytes=chunk.uploaded_bytes,
            streams=len(states),
            skipped_committed=counts[Verdict.COMMITTED],
            skipped_not_owned=counts[Verdict.NOT_OWNED],
            skipped_older_epoch=counts[Verdict.OLDER_EPOCH],
            slots=walk.end_sequence - self._wal.trim_sequence,
            duration_ms=(clock.monotonic_ns() - started_ns) // 1_000_000,
        )
        if self._tasks is None:
            await self._delete(walk)
        else:
            self._tasks.spawn(self._delete_later(walk), "delete recovered slots")
        return report

    async def _delete_later(self, walk: WalWalk) -> None:
        await self._runtime.clock.sleep(LINGER_S)
        await self._delete(walk)

    async def _delete(self, walk: WalWalk) -> None:
        """Delete the slots below the end, including those that the owner left below the trim point."""
        if not self._manager.may_delete_recovered():
            # The forced recovery may have lost controller records about these slots. The garbage
            # collector deletes the slots after the confirmation.
            LOG.warning(
                "%s: its slots stay in the store until the forced recovery is confirmed", self._wal.name
            )
            return
        left = {
            at
            for at, size_bytes in walk.listed.items()
            if at < walk.end_sequence and size_bytes > LABEL_BYTES
        }
        sequences = sorted(left | set(range(self._wal.trim_sequence, walk.end_sequence)))
        await delete_recovered(self._store, self._wal.name, sequences, self._runtime.clock)
