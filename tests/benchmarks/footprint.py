"""`make bench-footprint`: memory of idle connections and of 10,000 partitions in a broker, and the
cost of a Metadata response for all of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.messages.metadata import MetadataRequest

from tests.benchmarks.frames import METADATA_VERSION, create_topic, framed
from tests.benchmarks.raw_client import closed_loop, connect
from tests.benchmarks.report import Report
from tests.benchmarks.subject import GENERATOR_CORE, PonorSubject, ponor_subject

CONNECTIONS: Final = 5_000
TOPICS: Final = 20
PARTITIONS_PER_TOPIC: Final = 500
METADATA_S: Final = 5.0
CONNECTION_BYTES_PROMISED: Final = 8_192
RSS_BYTES_PROMISED: Final = 400 << 20
METADATA_MS_PROMISED: Final = 1.0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-footprint")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--topics", type=int, default=TOPICS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2 * options.connections), hard), hard))
    with (
        tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory,
        ponor_subject(Path(directory)) as subject,
    ):
        os.sched_setaffinity(0, {GENERATOR_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        per_connection = _connection_bytes(subject, options.connections)
        _row(
            f"memory per idle connection, of {options.connections:,}",
            per_connection,
            "bytes",
            CONNECTION_BYTES_PROMISED,
        )
        for number in range(options.topics):
            create_topic(subject.bootstrap, f"wide-{number}", PARTITIONS_PER_TOPIC)
            sys.stderr.write(f"{(number + 1) * PARTITIONS_PER_TOPIC:,} partitions\n")
        time.sleep(5.0)
        rss = subject.broker_rss_bytes()
        partitions = options.topics * PARTITIONS_PER_TOPIC
        _row(
            f"broker RSS with {partitions:,} partitions",
            rss / (1 << 20),
            "MiB",
            RSS_BYTES_PROMISED / (1 << 20),
        )
        wall_ms, cpu_ms = _metadata_ms(subject)
        _row("Metadata of all, p50", wall_ms, "ms", METADATA_MS_PROMISED)
        _row("Metadata of all, CPU", cpu_ms, "ms", METADATA_MS_PROMISED)
    extras = {
        "connection_bytes": per_connection,
        "partitions": partitions,
        "broker_rss_bytes": rss,
        "metadata_p50_ms": wall_ms,
        "metadata_cpu_ms": cpu_ms,
    }
    print(f"kept as {Report(extras={'footprint': extras}).keep(Path('build/bench'))}")


def _connection_bytes(subject: PonorSubject, count: int) -> float:
    """Growth of the broker's resident memory per connection that sends nothing."""
    warm = [connect(subject.bootstrap) for _ in range(200)]
    time.sleep(1.0)
    before = subject.broker_rss_bytes()
    idle: list[socket.socket] = [connect(subject.bootstrap) for _ in range(count)]
    time.sleep(2.0)
    grown = subject.broker_rss_bytes() - before
    for connection in (*warm, *idle):
        connection.close()
    return grown / count


def _metadata_ms(subject: PonorSubject) -> tuple[float, float]:
    """Median duration of a response about every topic, and its CPU time in the broker's processes."""
    frame = framed(ApiKey.METADATA, METADATA_VERSION, "bench", MetadataRequest(topics=None))
    closed_loop(subject.bootstrap, [frame], depth=1, seconds=1.0)
    before = subject.cpu_seconds()
    result = closed_loop(subject.bootstrap, [frame], depth=1, seconds=METADATA_S)
    return result.percentile_ms(0.5), 1000 * (subject.cpu_seconds() - before) / result.requests


def _row(name: str, value: float, unit: str, promised: float) -> None:
    print(
        f"{name}: {value:,.2f} {unit}; promised <= {promised:,g}:"
        f" {'kept' if value <= promised else 'NOT KEPT'}"
    )


if __name__ == "__main__":
    main()
