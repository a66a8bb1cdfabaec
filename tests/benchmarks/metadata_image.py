"""Memory of the image, speed of a log's replay, and time of the event loop for a snapshot.

Run it: `python -m tests.benchmarks.metadata_image [--stream-objects N] [--set-objects N]
[--streams-each N]`. Every case runs in a separate process, so that freed memory of one case does
not affect another. Prints results without asserting them.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

import psutil
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotReader, begin_snapshot
from ponor_metadata.nouns.objects import OBJECTS
from ponor_metadata.nouns.streams import STREAM_OBJECTS
from ponor_metadata.tables.ranges import StreamPiece, encode_ranges
from ponor_runtime.identity import ClusterOrdinal, StreamId, compose_id, compose_node_id

ORDINAL: Final = ClusterOrdinal(1)
NODE: Final = compose_node_id(ORDINAL, 1)
NOW_MS: Final = 1_800_000_000_000
BATCH_RECORDS: Final = 100
MB: Final = 1_000_000


def identifier(sequence: int) -> int:
    return compose_id(ORDINAL, sequence)


class Log:
    """Numbers batches, and encodes them as the leader does."""

    def __init__(self) -> None:
        self._index = 0

    def batches(self, records: Iterable[pb.Record], size: int = BATCH_RECORDS) -> Iterator[bytes]:
        records = iter(records)
        while chunk := list(itertools.islice(records, size)):
            self._index += 1
            batch = pb.RecordBatch(
                index=self._index, term=1, cluster_time_ms=NOW_MS + self._index, records=chunk
            )
            yield batch.SerializeToString(deterministic=True)


def beginning() -> Iterator[pb.Record]:
    yield pb.Record(
        cluster_formatted=pb.ClusterFormatted(
            cluster_id="c" * 36, cluster_ordinal=ORDINAL, namespace="c" * 36
        )
    )
    yield pb.Record(tenant_created=pb.TenantCreated(cluster_id="k" * 22))
    yield pb.Record(
        node_registered=pb.NodeRegistered(
            node_id=NODE, node_epoch=1, role=pb.NODE_ROLE_BROKER, incarnation=bytes(16)
        )
    )


def streams_created(count: int) -> Iterator[pb.Record]:
    for n in range(count):
        tags = {
            "topic": f"{n // 64:032x}",
            "partition": str(n // 4 % 16),
            "kind": ("data", "meta", "time", "txn")[n % 4],
        }
        yield pb.Record(stream_created=pb.StreamCreated(stream_id=identifier(n + 1), tags=tags))


def streams_opened(count: int) -> Iterator[pb.Record]:
    for n in range(count):
        yield pb.Record(
            stream_opened=pb.StreamOpened(
                stream_id=identifier(n + 1), stream_epoch=1, node_id=NODE, node_epoch=1
            )
        )


def objects_prepared(count: int, run: int = 1) -> Iterator[pb.Record]:
    for first in range(1, count + 1, run):
        yield run_prepared(first, min(run, count + 1 - first))


def run_prepared(first: int, count: int) -> pb.Record:
    return pb.Record(
        objects_prepared=pb.ObjectsPrepared(
            first_object_id=identifier(first),
            count=count,
            node_id=NODE,
            node_epoch=1,
            expires_at_ms=NOW_MS + 3_600_000 + first,
            namespace="c" * 36,
        )
    )


def prepared_and(committed: Iterator[pb.Record], run: int = 50) -> Iterator[pb.Record]:
    """Prepare runs of ids just before their use, as uploads do."""
    first = 1
    while chunk := list(itertools.islice(committed, run)):
        yield run_prepared(first, len(chunk))
        yield from chunk
        first += len(chunk)


def stream_objects_committed(count: int, streams: int) -> Iterator[pb.Record]:
    for n in range(count):
        start = n // streams * 5_000
        yield pb.Record(
            stream_object_committed=pb.StreamObjectCommitted(
                object_id=identifier(n + 1),
                size_bytes=16_000_000 + n % 1_000_003,
                stream_id=identifier(n % streams + 1),
                start_offset=start,
                end_offset=start + 5_000,
                committed_at_ms=NOW_MS + n,
            )
        )


def set_objects_committed(count: int, streams: int) -> Iterator[pb.Record]:
    for n in range(count):
        pieces = [StreamPiece(StreamId(identifier(s + 1)), n * 100, n * 100 + 100) for s in range(streams)]
        yield pb.Record(
            stream_set_object_committed=pb.StreamSetObjectCommitted(
                object_id=identifier(n + 1),
                size_bytes=8_000_000,
                node_id=NODE,
                packed_ranges=encode_ranges(pieces),
                committed_at_ms=NOW_MS + n,
            )
        )


def keys_put(count: int) -> Iterator[pb.Record]:
    for n in range(count):
        yield pb.Record(key_put=pb.KeyPut(key=f"partition/{n:032x}/0", value=b"\x0a" * 40))


def operations_completed(count: int) -> Iterator[pb.Record]:
    for n in range(1, count + 1):
        yield pb.Record(
            operation_completed=pb.OperationCompleted(
                node_id=NODE,
                node_epoch=1,
                first_incomplete_id=max(1, n - 100),
                request_id=n,
                digest=bytes(8),
                result=b"r" * 24,
            )
        )


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / MB


def replay(image: MetadataImage, batches: Iterable[bytes]) -> float:
    """CPU seconds for decoding and applying."""
    began = time.process_time()
    for encoded in batches:
        image.replay(encoded)
    return time.process_time() - began


def with_streams(log: Log, count: int) -> MetadataImage:
    image = MetadataImage()
    replay(image, log.batches(itertools.chain(beginning(), streams_created(count), streams_opened(count))))
    return image


def snapshot_figures(name: str, image: MetadataImage, more: Iterator[bytes]) -> None:
    """Encode a snapshot while batches are applied; then decode it."""
    cpu = time.process_time()
    for _ in begin_snapshot(image):
        pass
    print(f"{name}: encoded alone in {time.process_time() - cpu:.2f} s of CPU")
    began = time.thread_time()
    encoding = begin_snapshot(image)
    worst_s, chunks, applied = time.thread_time() - began, [], 0
    print(f"{name}: picture taken in {worst_s * 1e3:.2f} ms of {encoding.rows:,} rows")
    cpu = time.process_time()
    while True:
        began = time.thread_time()
        chunk = encoding.next_chunk()
        encoded = next(more, None)
        if encoded is not None:
            image.apply_committed(encoded)
            applied += 1
        worst_s = max(worst_s, time.thread_time() - began)
        if chunk is None:
            break
        chunks.append(chunk)
    cpu = time.process_time() - cpu
    print(
        f"{name}: {encoding.size_bytes / MB:.1f} MB in {len(chunks):,} slices beside {applied} batches, "
        f"{cpu:.2f} s of CPU, worst slice {worst_s * 1e3:.1f} ms"
    )
    body = b"".join(chunks)
    del chunks
    cpu, worst_s = time.process_time(), 0.0
    reader, more_sections = SnapshotReader(body), True
    while more_sections:
        began = time.thread_time()
        more_sections = reader.read_section()
        worst_s = max(worst_s, time.thread_time() - began)
    cpu = time.process_time() - cpu
    assert blake2b(body, digest_size=16).digest() == encoding.state_digest
    print(f"{name}: decoded in {cpu:.2f} s of CPU, worst slice {worst_s * 1e3:.1f} ms")
    gc.collect()
    began = time.thread_time()
    gc.collect()
    print(f"{name}: a full collection takes {(time.thread_time() - began) * 1e3:.1f} ms with two such images")


def stream_objects_case(count: int, streams: int, traced: bool) -> None:
    log = Log()
    image = with_streams(log, streams)
    gc.collect()
    before_mb = resident_mb()
    if traced:
        tracemalloc.start()
    for encoded in log.batches(prepared_and(stream_objects_committed(count, streams)), 51):
        image.apply_committed(encoded)
    if traced:
        print(
            f"{count:,} stream objects of {streams:,} streams: {tracemalloc.get_traced_memory()[0] / MB:.1f}"
            " MB traced"
        )
        return
    gc.collect()
    print(f"{count:,} stream objects of {streams:,} streams: {resident_mb() - before_mb:.1f} MB resident")
    assert len(image[STREAM_OBJECTS]) == len(image[OBJECTS]) == count
    snapshot_figures("  snapshot", image, log.batches(streams_trimmed(streams)))


def streams_trimmed(streams: int) -> Iterator[pb.Record]:
    """Batches to apply during the snapshot, spread over the whole image."""
    for start in range(1, 100):
        for n in range(streams):
            yield pb.Record(stream_trimmed=pb.StreamTrimmed(stream_id=identifier(n + 1), start_offset=start))


def set_objects_case(count: int, streams: int, traced: bool) -> None:
    log = Log()
    image = with_streams(log, streams)
    gc.collect()
    before_mb = resident_mb()
    if traced:
        tracemalloc.start()
    for encoded in log.batches(prepared_and(set_objects_committed(count, streams)), 1):
        image.apply_committed(encoded)
    name = f"{count:,} stream set objects of {streams:,} streams each"
    if traced:
        print(f"{name}: {tracemalloc.get_traced_memory()[0] / MB:.1f} MB traced")
        return
    gc.collect()
    print(f"{name}: {resident_mb() - before_mb:.1f} MB resident")
    snapshot_figures("  snapshot", image, log.batches(streams_trimmed(streams)))


def replay_case(count: int) -> None:
    """Each kind alone, then all in turn."""
    log, image = Log(), MetadataImage()
    streams = count // 5
    kinds: dict[str, tuple[int, Iterator[pb.Record]]] = {
        "begin": (3, beginning()),
        "stream_created": (streams, streams_created(streams)),
        "stream_opened": (streams, streams_opened(streams)),
        "key_put": (count, keys_put(count)),
        "objects_prepared and stream_object_committed": (
            count + count // 4,
            prepared_and(stream_objects_committed(count, streams), 4),
        ),
        "operation_completed": (count, operations_completed(count)),
    }
    total = total_s = 0.0
    for name, (records, made) in kinds.items():
        batches = list(log.batches(made))
        gc.collect()
        gc.freeze()
        seconds = replay(image, batches)
        total, total_s = total + records, total_s + seconds
        print(f"replay {name}: {records / seconds:,.0f} records/s")
    print(f"replay of all {total:,.0f}: {total / total_s:,.0f} records/s")


def as_in_a_service(case: Callable[..., None], *arguments: int | bool) -> None:
    """Configure the garbage collector as services do: modules and loaded objects are excluded."""
    gc.set_threshold(50_000, 50, 50)
    gc.collect()
    gc.freeze()
    case(*arguments)


def alone(case: Callable[..., None], *arguments: int | bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=as_in_a_service, args=(case, *arguments))
    process.start()
    process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream-objects", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--set-objects", type=int, default=10_000)
    parser.add_argument("--streams-each", type=int, default=1_000)
    parser.add_argument("--replay", type=int, default=100_000)
    parser.add_argument("--traced", action="store_true", help="tracemalloc too; takes minutes")
    chosen = parser.parse_args()
    if chosen.replay:
        alone(replay_case, chosen.replay)
    for traced in (False, True) if chosen.traced else (False,):
        if chosen.stream_objects:
            alone(stream_objects_case, chosen.stream_objects, chosen.streams, traced)
        if chosen.set_objects:
            alone(set_objects_case, chosen.set_objects, chosen.streams_each, traced)


if __name__ == "__main__":
    main()
