"""`python -m tools.demo [--records N] [--keep]`: a cluster, three client families and a picture, in about a
minute.

The cluster uses a temporary directory and free ports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.clients.image_reader import image_of
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.ports import free_ports
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tools.demo.clients import (
    FAMILIES,
    TOPIC,
    VALUE_BYTES,
    Seen,
    end_offsets,
    make_topic,
    quiet_clients,
    read,
    write,
)
from tools.demo.holdings import TopicHoldings, holdings_of
from tools.demo.picture import render_svg, render_terminal

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "demo"
PARTITIONS = 6
RECORDS_DEFAULT = 24_000
START_S_MAX = 60.0
WORK_S_MAX = 180.0
UPLOAD_S_MAX = 30.0
SETTINGS = {
    # Small and frequent uploads, so that a minute produces many objects of both kinds.
    "upload_size_bytes_max": "6MiB",
    "upload_interval_ms": "3000",
    "split_size_bytes": "1MiB",
}


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS_DEFAULT, help="per client family")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    quiet_clients()
    directory = Path(tempfile.mkdtemp(prefix="ponor-demo-"))
    try:
        with running_cluster(directory) as cluster:
            console.print(
                "[bold]1[/] A fresh cluster: controller, broker, gc, compactor; Kafka clients at"
                f" {cluster.bootstrap}"
            )
            make_topic(cluster.bootstrap, PARTITIONS)
            work_s, seen = let_clients_work(console, cluster.bootstrap, arguments.records)
            check(seen, arguments.records)
            show(console, cluster, directory, arguments.records, work_s)
    finally:
        if arguments.keep:
            console.print(f"kept: {directory}; `ponor up --data {directory / 'data'}` starts it again")
        else:
            subprocess.run(["rm", "-rf", str(directory)], check=True)
    return 0


@contextmanager
def running_cluster(directory: Path) -> Iterator[ClusterFile]:
    """Run `ponor up` on free ports for the duration of the block."""
    (kafka_port,) = free_ports("127.0.0.1", 1)
    data, ready = directory / "data", directory / "ready.json"
    command = [str(Path(sys.executable).with_name("ponor")), "up", "--data", str(data)]
    command += ["--kafka-port", str(kafka_port), "--ready-file", str(ready)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    log = directory / "up.log"
    with log.open("wb") as output:
        supervisor = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists():
            if supervisor.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the cluster did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        yield ClusterFile.read(ClusterDirectory(data))
    finally:
        supervisor.terminate()
        supervisor.wait(30)


def let_clients_work(console: Console, bootstrap: str, records: int) -> tuple[float, Seen]:
    """Run all writers and readers concurrently; return the duration in seconds and the records read."""
    console.print(
        f"[bold]2[/] {', '.join(FAMILIES)}: each writes {records:,} records with acks=all, all read them as"
        " one group"
    )
    seen, total, began = Seen(), records * len(FAMILIES), time.monotonic()

    def is_over() -> bool:
        return len(seen.records) >= total or time.monotonic() - began > WORK_S_MAX

    columns = (
        SpinnerColumn(finished_text=" "), TextColumn("{task.description:<22}"), BarColumn(None),
        MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(2 * len(FAMILIES)) as threads:
        running: list[Future[None]] = []
        reading = progress.add_task("read by the group", total=total)
        for family in FAMILIES:
            writing = progress.add_task(f"{family} writes", total=records)
            running.append(
                threads.submit(write, family, bootstrap, records, partial(progress.advance, writing))
            )
            running.append(
                threads.submit(read, family, bootstrap, seen, partial(progress.advance, reading), is_over)
            )
        for each in running:
            each.result()
    return time.monotonic() - began, seen


def check(seen: Seen, records: int) -> None:
    """Check that every acknowledged record was read; a rebalance may duplicate a record."""
    expected = {(family, number) for family in FAMILIES for number in range(records)}
    missing = expected - set(seen.records)
    if missing or set(seen.records) - expected:
        raise SystemExit(f"{len(missing)} acknowledged records were not read; the first is {min(missing)}")


def show(console: Console, cluster: ClusterFile, directory: Path, records: int, work_s: float) -> None:
    """Wait for the uploads, verify the objects and draw the picture."""
    held, ends = await_uploads(cluster)
    verified = subprocess.run(
        [str(Path(sys.executable).with_name("ponor")), "object", "verify", "--data", str(directory / "data")],
        check=True,
        capture_output=True,
        text=True,
    )
    written = records * len(FAMILIES)
    console.print(
        f"[bold]3[/] {written:,} records ({written * VALUE_BYTES / 1e6:.0f} MB) written and read in"
        f" {work_s:.0f} s; {verified.stdout.strip()}; {len(held.objects)} of them hold the topic:\n"
    )
    for line in render_terminal(held, ends, max(20, min(console.width, 120) - 24)):
        console.print(line)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "objects.svg"
    subtitle = (
        f"{written:,} records of three client families in {len(held.objects)} objects; pieces with"
        " equal numbers belong to one object; hatched: not uploaded yet"
    )
    path.write_text(render_svg(held, ends, subtitle), encoding="utf-8")
    console.print(f"\nEach colour is one object. Picture: {path.relative_to(ROOT)}")


def await_uploads(cluster: ClusterFile) -> tuple[TopicHoldings, dict[int, int]]:
    """Wait until every record of the topic is in an object, or until a timeout.

    The picture shows the rest as hatched.
    """
    address = ClusterAddress(cluster.bootstrap, cluster.controllers, cluster.object_store)
    ends = end_offsets(cluster.bootstrap)
    deadline = time.monotonic() + UPLOAD_S_MAX
    while True:
        held = holdings_of(image_of(address), TOPIC, PARTITIONS)
        if all(held.end_of(each) >= end for each, end in ends.items()) or time.monotonic() > deadline:
            return held, ends
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
