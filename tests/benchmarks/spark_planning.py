"""Cost of planning a scan of a topic in ten thousand objects: CPU and wall seconds, GETs, memory,
by store. `python -m tests.benchmarks.spark_planning [--objects N] [--blocks N] [--shared] [--s3]
[--answer-ms N]`

It uses real objects with real indexes and little data, because planning reads indexes but no
blocks. It plans a scan of the whole topic, and one from the timestamp of its first record, which
reads every index. With `--shared`, each object also contains another stream, as objects of brokers
do, so every index is read. With `--s3`, the objects are on a real S3 server, otherwise in a
directory; `--answer-ms` is added to the duration of each GET. Memory is measured in a second
planning, because measuring costs time.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import obstore
from ponor_runtime.disk import Buffer
from ponor_spark.lease_notes import LEASES_VARIABLE
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.offsets import OffsetRange
from ponor_spark.option_values import INT64_MAX
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import SegmentSlice, Snapshot
from ponor_spark.split import Split
from s3stream.stores.s3 import connect
from s3stream.stores.s3_location import parse_s3_location

from spark.tests.stored_snapshots import TOPIC, Store, Written, options, partition_of
from tests.benchmarks.report import Report
from tests.integration.seaweed_server import SeaweedServer

STREAM: Final = 7
OTHER_STREAM: Final = 8
RECORD: Final = b"r" * 400
BLOCK_BYTES: Final = 512
"""Bytes of one record, so that each block has one record."""
PROMISED_S: Final = 2.0
RESULTS: Final = Path("build/bench")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="spark_planning", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=16, help="in each object: 16 are 8 MiB")
    parser.add_argument("--shared", action="store_true", help="with a block of another stream in each object")
    parser.add_argument("--s3", action="store_true", help="on a real S3 server, not in a directory")
    parser.add_argument("--answer-ms", type=int, default=0, help="how much longer each GET takes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory, _leases(directory):
        store = Store(Path(directory) / "store", BLOCK_BYTES)
        sys.stderr.write(f"writing {given.objects:,} objects of {given.blocks} blocks\n")
        _write(store, given.objects, given.blocks, shared=given.shared)
        end = given.objects * given.blocks
        snapshot = store.snapshot(partition_of([SegmentSlice(STREAM, 0, end, 0)]))
        if given.s3:
            (Path(directory) / "s3").mkdir()
            with SeaweedServer(Path(directory) / "s3") as server:
                os.environ.update(server.environment)
                _upload(Path(directory) / "store" / "objects", server.url("plan"))
                found = _measured(replace(snapshot, object_store=server.url("plan")), end, given.answer_ms)
        else:
            found = _measured(snapshot, end, given.answer_ms)
    found |= {"objects": given.objects, "blocks": end, "store": "s3" if given.s3 else "directory"}
    found |= {"shared": given.shared, "answer_ms": given.answer_ms}
    for name, value in found.items():
        print(f"{name:28} {value}")
    for name in ("wall_s", "by_time_wall_s"):
        kept = "kept" if float(str(found[name])) <= PROMISED_S else "NOT KEPT"
        print(f"promise: 10,000 objects in {PROMISED_S:g} s, {name}: {kept}")
    print(f"kept as {Report(extras={'spark_planning': found}).keep(RESULTS)}")


def _write(store: Store, objects: int, blocks: int, *, shared: bool) -> None:
    for number in range(objects):
        begin = number * blocks
        records = [Written(begin + each, 1, begin + each, RECORD) for each in range(blocks)]
        store.put((STREAM, records), *([(OTHER_STREAM, records[:1])] if shared else []))


def _upload(directory: Path, url: str) -> None:
    remote = connect(parse_s3_location(url, os.environ))
    sys.stderr.write("uploading\n")
    for path in sorted(directory.rglob("*.object")):
        key = str(path.relative_to(directory)).removesuffix(".object")
        obstore.put(remote, key, path.read_bytes())


class _Answering:
    """A store that counts and delays GETs."""

    def __init__(self, source: ObjectSource, answer_ms: int) -> None:
        self._source = source
        self._answer_ms = answer_ms
        self._lock = threading.Lock()
        self.gets = 0

    def get(self, key: str, position: int, size_bytes: int) -> Buffer:
        with self._lock:
            self.gets += 1
        if self._answer_ms:
            time.sleep(self._answer_ms / 1000)
        return self._source.get(key, position, size_bytes)


def _measured(snapshot: Snapshot, end: int, answer_ms: int) -> dict[str, object]:
    ranges = [OffsetRange(TOPIC, 0, 0, end)]
    by_time = PushedFilters(time_range_ms=(1, INT64_MAX))
    found = _timed("", snapshot, ranges, PushedFilters(), answer_ms)
    found |= _timed("by_time_", snapshot, ranges, by_time, answer_ms)
    tracemalloc.start()
    again = plan(snapshot, ranges, PushedFilters(), options())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found | {
        "splits": len(again),
        "pickled_splits_bytes": sum(len(pickle.dumps(split)) for split in again),
        "pickled_snapshot_bytes": len(pickle.dumps(snapshot)),
        "planning_peak_bytes": peak_bytes,
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _timed(
    name: str, snapshot: Snapshot, ranges: list[OffsetRange], filters: PushedFilters, answer_ms: int
) -> dict[str, object]:
    source = _Answering(open_object_source(snapshot.object_store), answer_ms)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    splits = plan(snapshot, ranges, filters, options(), source=source)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    sizes = [split.size_bytes for split in splits if isinstance(split, Split)]
    return {
        f"{name}wall_s": round(wall_s, 3),
        f"{name}cpu_s": round(cpu_s, 3),
        f"{name}gets": source.gets,
        f"{name}largest_to_mean_split": round(max(sizes) * len(sizes) / sum(sizes), 3),
    }


@contextmanager
def _leases(directory: str) -> Iterator[None]:
    """A directory for lease files; no process renews the snapshot, which belongs to no controller."""
    before = os.environ.get(LEASES_VARIABLE)
    notes = Path(directory) / "leases"
    notes.mkdir()
    os.environ[LEASES_VARIABLE] = str(notes)
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEASES_VARIABLE]
        else:
            os.environ[LEASES_VARIABLE] = before


if __name__ == "__main__":
    main()
