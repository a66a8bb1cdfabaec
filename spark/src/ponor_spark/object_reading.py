"""An executor's reads of objects: runs of blocks in order, with read-ahead, each block verified before it is
decoded.

Every block is checked against the index entry that the driver planned with (length and CRC32C,
docs/formats/object.md). Memory is at most `READ_BYTES_MAX` in at most `RUNS_IN_FLIGHT_MAX` runs, including
the one being decoded (docs/design/spark.md#memory). `object_source.py` reads the bytes and `decode/` decodes
the blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectNotFoundError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)

from ponor_spark.errors import ClusterUnreachableError, StoredDataError, lease_over
from ponor_spark.object_source import ObjectSource
from ponor_spark.split import ObjectRun, WholeObject
from ponor_spark.stream_blocks import run_of

RUNS_IN_FLIGHT_MAX: Final = 6
"""Runs per task: five of 4 MiB are fetched while one is decoded. This reads 200 MB/s from a store with 50 ms
latency and 85 MB/s per connection; an executor has several tasks.
"""
READ_BYTES_MAX: Final = 48 << 20
"""Maximum bytes of these runs: three whole objects.

One run of any size is always fetched ahead; otherwise a task would wait for every read.
"""


@dataclass(frozen=True, slots=True)
class ReadRetry:
    """Bounds of read retries and the pauses between them; after that Spark retries the task."""

    attempts_max: int = 6
    backoff_ms_first: int = 100
    backoff_ms_max: int = 5_000

    def pause_ms(self, failures: int) -> int:
        """Return the pause after that many failures (1 or more)."""
        return min(self.backoff_ms_first << min(failures - 1, 30), self.backoff_ms_max)


class ObjectReader:
    """Reads runs from a source; used by one task and its thread."""

    def __init__(
        self,
        source: ObjectSource,
        *,
        lease_id: int,
        retry: ReadRetry | None = None,
        runs_in_flight_max: int = RUNS_IN_FLIGHT_MAX,
        read_bytes_max: int = READ_BYTES_MAX,
        pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - a task's threads wait for nothing else
    ) -> None:
        """Create a reader without reading.

        `lease_id` appears in errors: the lease protects the objects from deletion. At most
        `runs_in_flight_max` runs are fetched or held at a time, with at most `read_bytes_max` bytes; two runs
        may exceed these bytes.
        """
        assert runs_in_flight_max >= 1
        self._source: Final = source
        self._lease_id: Final = lease_id
        self._retry: Final = retry if retry is not None else ReadRetry()
        self._runs_in_flight_max: Final = runs_in_flight_max
        self._read_bytes_max: Final = read_bytes_max
        self._pause: Final = pause

    def runs(self, runs: Sequence[ObjectRun | WholeObject]) -> Iterator[tuple[ObjectRun, list[memoryview]]]:
        """Yield each run with its verified blocks, in the given order; for a whole object, the run derived
        from its index.

        Raises:
            SnapshotExpiredError: an object is missing.
            ClusterUnreachableError: the store refuses this executor's credentials.
            StoredDataError: an object is damaged, or the store does not answer; names object and position.
        """
        waiting: deque[tuple[int, Future[tuple[ObjectRun, list[memoryview]]]]] = deque()
        held_bytes, remaining = 0, deque(runs)
        pool = ThreadPoolExecutor(self._runs_in_flight_max, thread_name_prefix="ponor-read")
        try:
            while True:
                while remaining and self._has_room(len(waiting), held_bytes + remaining[0].size_bytes):
                    run = remaining.popleft()
                    waiting.append((run.size_bytes, pool.submit(self._read, run)))
                    held_bytes += run.size_bytes
                if not waiting:
                    return
                yield waiting[0][1].result()
                # Fetch the next run only now: the run that the caller decodes counts against the bounds.
                held_bytes -= waiting.popleft()[0]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _has_room(self, held: int, with_next_bytes: int) -> bool:
        """Return whether one more run may be fetched: within both bounds, or as the only one besides the run
        being decoded.
        """
        return held < self._runs_in_flight_max and (held < 2 or with_next_bytes <= self._read_bytes_max)

    def _read(self, run: ObjectRun | WholeObject) -> tuple[ObjectRun, list[memoryview]]:
        failures = 0
        while True:
            try:
                return _proven(run, self._source.get(run.key, run.position, run.size_bytes))
            except ObjectNotFoundError as error:
                raise lease_over(self._lease_id, f"object {run.key} is gone") from error
            except ObjectStoreRefusedError as error:
                raise ClusterUnreachableError(
                    f"the object store refuses an executor: {error}; credentials come from the executors'"
                    " environment (AWS_*, or their role), never from options"
                ) from error
            except ObjectStoreError as error:
                failures += 1
                if not error.retriable or failures >= self._retry.attempts_max:
                    raise StoredDataError(
                        f"object {run.key} cannot be read ({failures} attempts): {error}"
                    ) from error
            self._pause(self._retry.pause_ms(failures) / 1000)


def _proven(run: ObjectRun | WholeObject, data: Buffer) -> tuple[ObjectRun, list[memoryview]]:
    if isinstance(run, WholeObject):
        run, view = run_of(run, data), memoryview(data)
        data = view[run.position : run.position + run.size_bytes]
    return run, prove_blocks(run, data)


def prove_blocks(run: ObjectRun, data: Buffer) -> list[memoryview]:
    """Split a run into its blocks.

    Raises:
        ObjectStoreUnavailableError: bytes are missing or do not match the index. The index is verified, so
            the damage is in the object or in transit, and a retry may succeed.
    """
    view = memoryview(data)
    if len(view) != run.size_bytes:
        raise ObjectStoreUnavailableError(
            f"position {run.position}: {len(view)} bytes arrived instead of {run.size_bytes}"
        )
    blocks: list[memoryview] = []
    for entry in run.blocks():
        start = entry.position - run.position
        block = view[start : start + entry.size_bytes]
        if len(block) != entry.size_bytes or crc32c(block) != entry.crc:
            raise ObjectStoreUnavailableError(
                f"position {entry.position}: the block's bytes do not match its CRC32C in the index"
            )
        blocks.append(block)
    return blocks
