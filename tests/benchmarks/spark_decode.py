"""Speed of decoding stored batches to Arrow batches: megabytes of uncompressed records per second
on one core, including checksums.

Run it: `python -m tests.benchmarks.spark_decode [--megabytes N] [--repeats N]`. Data blocks of 512
KiB with batches of 64 KiB, as librdkafka produces them, are created for each case and decoded as a
Spark executor does. CPU seconds of this process, the best of the repeats, without fetching and
Spark itself. Prints results without asserting them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ponor_kafka.compression import Codec
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_spark.clip import Clip
from ponor_spark.decode import kernel
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.decode.schema import FULL, HEADERS
from s3stream.records import StreamRecord

from spark.tests import kernel_oracle

MB: Final = 1_000_000
BATCH_BYTES: Final = 64 << 10
BLOCK_BYTES: Final = 512 << 10
EVERYTHING: Final = (*FULL.names, HEADERS)
TIMES_ONLY: Final = ("offset", "timestamp")
START_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one size: a key of 8 bytes, and text that compresses about like JSON."""

    name: str
    value_bytes: int
    headers: tuple[tuple[str, bytes], ...]

    def batch(self, number: int, codec: Codec) -> tuple[bytes, int, int]:
        """A batch, its number of records, and their uncompressed bytes."""
        count = max(1, BATCH_BYTES // (self.value_bytes + 20))
        records = [
            NewRecord(START_MS + n, b"%08d" % n, self._value(number * count + n), self.headers)
            for n in range(count)
        ]
        plain = build_batch(records)
        batch = plain if codec is Codec.NONE else build_batch(records, codec=codec)
        return bytes(batch), count, len(plain)

    def _value(self, number: int) -> bytes:
        text = b"".join(
            b'{"id":%d,"sum":%d},' % (number, number * i * 7919) for i in range(self.value_bytes // 16)
        )
        return text[: self.value_bytes].ljust(self.value_bytes, b".")


ONE_KB: Final = Records("1 KB + 2 headers", 1024, (("trace", b"0123456789abcdef"), ("source", b"shop")))
SMALL: Final = Records("100 B", 100, ())


def blocks_of(records: Records, codec: Codec, megabytes: int) -> tuple[list[bytes], int, int]:
    """Data blocks, their number of records, and their uncompressed bytes."""
    blocks: list[bytes] = []
    block = bytearray()
    offset = total_bytes = number = 0
    while total_bytes < megabytes * MB:
        batch, count, size = records.batch(number, codec)
        block += (
            StreamRecord(StreamId(1), StreamEpoch(1), offset, count, START_MS, batch).encode_header() + batch
        )
        offset, total_bytes, number = offset + count, total_bytes + size, number + 1
        if len(block) >= BLOCK_BYTES:
            blocks.append(bytes(block))
            block.clear()
    return [*blocks, bytes(block)] if block else blocks, offset, total_bytes


def decode(blocks: Sequence[bytes], columns: Sequence[str], builder: Any) -> Iterator[int]:
    decoder = BatchDecoder(columns, clip=Clip("topic", 0, 0, 1 << 40), kernel=builder)
    for block in blocks:
        decoder.feed_block(block, 0)
        for batch in decoder.take():
            yield batch.num_rows
    for batch in decoder.finish():
        yield batch.num_rows


def best_cpu_s(
    blocks: Sequence[bytes], columns: Sequence[str], builder: Any, repeats: int, rows: int
) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        found = sum(decode(blocks, columns, builder))
        best = min(best, time.process_time() - began)
        assert found == rows, f"{found} rows of {rows}"
    return best


def case(
    records: Records, codec: Codec, columns: Sequence[str], builder: Any, options: argparse.Namespace
) -> None:
    is_native = builder is kernel.RowBuilder
    blocks, rows, size_bytes = blocks_of(
        records, codec, options.megabytes if is_native else options.megabytes // 4 or 1
    )
    seconds = best_cpu_s(blocks, columns, builder, options.repeats, rows)
    what = (
        "all columns"
        if columns == EVERYTHING
        else "without headers"
        if columns == FULL.names
        else "+".join(columns)
    )
    print(
        f"{records.name:17} {codec.name.lower():6} {what:17} {'kernel' if is_native else 'oracle':8}"
        f" {size_bytes / MB / seconds:8,.0f} MB/s {rows / seconds / 1e6:6.2f} M records/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for records in (ONE_KB, SMALL):
        for codec in (Codec.NONE, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD):
            case(records, codec, EVERYTHING, kernel.RowBuilder, options)
        for columns in (FULL.names, TIMES_ONLY):
            case(records, Codec.NONE, columns, kernel.RowBuilder, options)
        for codec in (Codec.NONE, Codec.LZ4):
            case(records, codec, EVERYTHING, kernel_oracle.RowBuilder, options)


if __name__ == "__main__":
    main()
