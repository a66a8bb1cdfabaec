"""Execution of one upload plan: prepare ids, encode and put objects, commit.

Used by the upload pipeline and by recovery. A put is retried without limit, because the write-ahead
log cannot be trimmed before it; backpressure bounds the data that waits. Prepared ids expire, so an upload
that takes too long restarts with new ids; garbage collection removes the old objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.runtime import Runtime

from s3stream.errors import ObjectCorruptError, PreparedExpiredError
from s3stream.objects.keys import object_key
from s3stream.objects.writer import EncodedObject, ObjectWriter
from s3stream.ports import ObjectManager, UploadedObject, WalName
from s3stream.settings import PREPARED_IDS_MAX, StorageSettings
from s3stream.stores.buffers import last_bytes
from s3stream.stores.policy import COMPARED_TAIL_BYTES
from s3stream.upload_plan import UploadPiece, UploadPlan

LOG = logging.getLogger(__name__)
RECORDS_PER_TURN: Final = 512
BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""Limits of the records and bytes that one turn of the event loop encodes, in about half a millisecond."""

PREPARED_PERCENT: Final = 80
"""Part of the prepared ids' lifetime after which an upload restarts. In the remaining time, a commit that was
already sent can still reach the controller."""

_RETRY_MS_FIRST: Final = 50


@dataclass(frozen=True, slots=True)
class UploadedGroup:
    """The stored objects of one commit."""

    stream_set_object: UploadedObject | None
    stream_objects: tuple[UploadedObject, ...]


@dataclass(frozen=True, slots=True)
class UploadedPlan:
    """All stored objects of a plan, and the time until which they may be committed."""

    groups: tuple[UploadedGroup, ...]
    usable_until_ns: int


class ObjectUploader:
    """Executes upload plans. With `recovered`, the data comes from another process's log."""

    def __init__(
        self,
        runtime: Runtime,
        store: ObjectStore,
        objects: ObjectManager,
        settings: StorageSettings,
        recovered: WalName | None = None,
    ) -> None:
        telemetry = runtime.telemetry
        self._store = store
        self._recovered = recovered
        self._objects = objects
        self._clock = runtime.clock
        self._randomness = runtime.randomness
        self._settings = settings
        self._puts = asyncio.Semaphore(settings.puts_in_flight_max)
        self._stages = {
            stage: telemetry.histogram("ponor_upload_seconds", stage=stage)
            for stage in ("prepare", "put", "commit")
        }
        self._committed_objects = {
            kind: telemetry.counter("ponor_upload_objects_total", kind=kind) for kind in ("so", "sso")
        }
        self._committed_bytes = {
            kind: telemetry.counter("ponor_upload_bytes_total", kind=kind) for kind in ("so", "sso")
        }

    async def upload(
        self,
        plan: UploadPlan,
        *,
        turn: asyncio.Future[None] | None = None,
        trim_sequence: Callable[[], int] | None = None,
    ) -> int:
        """Store every object of a plan and commit them group by group. Retries until it succeeds.

        Args:
            plan: the objects to upload.
            turn: awaited between puts and commit, so that older uploads commit first.
            trim_sequence: called before the last commit. It returns the first entry that the log still needs
                after that commit, and the commit sends this number to the controller.

        Returns:
            The trim point sent to the controller, 0 if none.

        Raises:
            CommitRefusedError: the controller refused; the node must stop.
            ObjectCorruptError: another writer's object has the same key.
        """
        groups = plan.groups
        trimmed_to = 0
        if not groups and trim_sequence is not None:
            trimmed_to = await self._commit_trim(trim_sequence, turn)
        while groups:
            uploaded = await self._put(UploadPlan(groups, ()))
            if turn is not None:
                await asyncio.shield(turn)
            if trim_sequence is not None:
                trimmed_to = trim_sequence()
            groups = groups[await self._commit(uploaded, trimmed_to) :]
        return trimmed_to

    async def _commit_trim(self, trim_sequence: Callable[[], int], turn: asyncio.Future[None] | None) -> int:
        """Commit only the trim point, because all data belonged to deleted streams."""
        if turn is not None:
            await asyncio.shield(turn)
        trimmed_to = trim_sequence()
        if trimmed_to:
            await self._objects.commit_upload(None, (), trim_sequence=trimmed_to, recovered=self._recovered)
        return trimmed_to

    async def _put(self, plan: UploadPlan) -> UploadedPlan:
        while True:
            try:
                return await self._put_once(plan)
            except* PreparedExpiredError:
                pass

    async def _commit(self, uploaded: UploadedPlan, trim_sequence: int) -> int:
        """Commit the groups in order; the last commit carries the trim point. Return the number of
        committed groups, which is smaller if the prepared ids expired.
        """
        assert trim_sequence >= 0
        started_ns = self._clock.monotonic_ns()
        committed = 0
        for group in uploaded.groups:
            if self._clock.monotonic_ns() >= uploaded.usable_until_ns:
                break
            try:
                await self._commit_group(group, trim_sequence if group is uploaded.groups[-1] else 0)
            except PreparedExpiredError:
                break
            self._count(group)
            committed += 1
        self._record("commit", started_ns)
        return committed

    async def _commit_group(self, group: UploadedGroup, trim_sequence: int) -> None:
        if self._recovered is None and not trim_sequence:
            await self._objects.commit_upload(group.stream_set_object, group.stream_objects)
        else:
            await self._objects.commit_upload(
                group.stream_set_object,
                group.stream_objects,
                trim_sequence=trim_sequence,
                recovered=self._recovered,
            )

    async def _put_once(self, plan: UploadPlan) -> UploadedPlan:
        started_ns = self._clock.monotonic_ns()
        usable_until_ns = started_ns + self._settings.prepared_ttl_ms * 1_000_000 * PREPARED_PERCENT // 100
        contents = _objects_of(plan)
        assert len(contents) == plan.object_count
        places: list[tuple[str, ObjectId]] = []
        while len(places) < len(contents):
            places += await self._prepare(min(len(contents) - len(places), PREPARED_IDS_MAX))
        self._record("prepare", started_ns)
        started_ns = self._clock.monotonic_ns()
        puts: list[asyncio.Task[UploadedObject]] = []
        async with asyncio.TaskGroup() as tasks:
            for (key, object_id), pieces in zip(places, contents, strict=True):
                puts.append(tasks.create_task(self._put_object(key, object_id, pieces, usable_until_ns)))
        self._record("put", started_ns)
        done = iter([task.result() for task in puts])
        groups = tuple(
            UploadedGroup(
                next(done) if group.stream_set else None, tuple(next(done) for _ in group.stream_objects)
            )
            for group in plan.groups
        )
        return UploadedPlan(groups, usable_until_ns)

    async def _prepare(self, count: int) -> list[tuple[str, ObjectId]]:
        """Return keys and ids of this many new objects."""
        assert 0 < count <= PREPARED_IDS_MAX
        prepared = await self._objects.prepare_objects(count)
        assert prepared.count >= count, "the controller reserved too few ids"
        ids = map(ObjectId, range(prepared.first_object_id, prepared.first_object_id + count))
        return [(object_key(prepared.namespace, object_id), object_id) for object_id in ids]

    async def _put_object(
        self, key: str, object_id: ObjectId, pieces: Sequence[UploadPiece], usable_until_ns: int
    ) -> UploadedObject:
        async with self._puts:
            encoded = await self._encode(object_id, pieces)
            attempt = 0
            while True:
                remaining_s = (usable_until_ns - self._clock.monotonic_ns()) / 1e9
                if remaining_s <= 0:
                    raise PreparedExpiredError
                try:
                    async with asyncio.timeout(remaining_s):
                        await self._put_create_only(key, encoded)
                    return UploadedObject(object_id, encoded.size_bytes, tuple(encoded.ranges))
                except ObjectStoreError as error:
                    delay_s = min(self._retry_s(attempt), remaining_s)
                    LOG.warning("retrying upload of object %s in %.1f s: %r", key, delay_s, error)
                    await self._clock.sleep(delay_s)
                except TimeoutError:
                    raise PreparedExpiredError from None
                attempt += 1

    async def _encode(self, object_id: ObjectId, pieces: Sequence[UploadPiece]) -> EncodedObject:
        writer = ObjectWriter(object_id, block_bytes_max=self._settings.object_block_bytes_max)
        for piece in pieces:
            record_bytes = max(piece.size_bytes // sum(map(len, piece.runs)), 1)
            at_once = max(min(RECORDS_PER_TURN, BYTES_PER_TURN // record_bytes), 1)
            for run in piece.runs:
                for first in range(0, len(run), at_once):
                    writer.add_run(run[first : first + at_once])
                    await self._clock.sleep(0)
        return writer.finish()

    async def _put_create_only(self, key: str, encoded: EncodedObject) -> None:
        """Put an object. If its key exists, an earlier attempt of this upload must have put it, because
        the id was prepared for this upload.
        """
        try:
            await self._store.put(key, encoded.buffers)
        except ObjectAlreadyExistsError:
            tail, size_bytes = await self._store.get_tail(key, COMPARED_TAIL_BYTES)
            if len(tail) < min(size_bytes, COMPARED_TAIL_BYTES):
                raise ObjectStoreUnavailableError(f"{key}: a short read of {len(tail)} bytes") from None
            if size_bytes != encoded.size_bytes or tail != last_bytes(encoded.buffers, COMPARED_TAIL_BYTES):
                raise ObjectCorruptError(
                    f"{key}: another object of {size_bytes} bytes has this key; two clusters use the"
                    " same namespace in this store"
                ) from None

    def _retry_s(self, attempt: int) -> float:
        ceiling_ms = min(_RETRY_MS_FIRST << min(attempt, 20), self._settings.upload_retry_ms_max)
        return (ceiling_ms / 2 + self._randomness.uniform(0, ceiling_ms / 2)) / 1000

    def _count(self, group: UploadedGroup) -> None:
        made = [("so", uploaded) for uploaded in group.stream_objects]
        if group.stream_set_object is not None:
            made.append(("sso", group.stream_set_object))
        for kind, uploaded in made:
            self._committed_objects[kind].add(1)
            self._committed_bytes[kind].add(uploaded.size_bytes)

    def _record(self, stage: str, started_ns: int) -> None:
        self._stages[stage].record((self._clock.monotonic_ns() - started_ns) // 1000)


def _objects_of(plan: UploadPlan) -> list[tuple[UploadPiece, ...]]:
    """Return the content of each object in the order of the ids: per group the stream set object,
    then the stream objects.
    """
    contents: list[tuple[UploadPiece, ...]] = []
    for group in plan.groups:
        if group.stream_set:
            contents.append(group.stream_set)
        contents.extend((piece,) for piece in group.stream_objects)
    return contents
