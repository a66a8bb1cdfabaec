"""Throughput, latency, requests and hedged puts of several kinds of producers with a distant store,
in virtual time.

Run it: `python -m tests.benchmarks.distant_log [--seconds N] [--set wal_hedge_share=0]`. Latencies
of the store are lognormal, p50 30 ms and p99 120 ms. Prints results without asserting them.
"""

from __future__ import annotations

import argparse
from typing import Final

from s3stream.settings import KIB, MIB, StorageSettings

from libs.s3stream.tests.distant_log import DistantStore, Load, run_load

WINDOW: Final = 5
LOADS: Final = {
    "10 appends/s of 1 KB": Load(1_000, per_s=10, evenly=True),
    "100 appends/s of 1 KB, at random": Load(1_000, per_s=100),
    "1,000 appends/s of 1 KB, at random": Load(1_000, per_s=1_000),
    "one request of 16 KiB in flight": Load(16 * KIB, in_flight=1),
    **{
        f"five of 16 KiB in flight, read in {reading_ms} ms each": Load(
            16 * KIB, in_flight=WINDOW, reading_s=reading_ms / 1000
        )
        for reading_ms in (0, 0.5, 1, 1.5, 2, 2.5, 3.5)
    },
    "20 of 16 KiB in flight, read in 1 ms each": Load(16 * KIB, in_flight=20, reading_s=0.001),
    "64 of 16 KiB in flight, read in 0.3 ms each": Load(16 * KIB, in_flight=64, reading_s=0.0003),
    "five of 1 MiB in flight, read in 4 ms each": Load(1 * MIB, in_flight=WINDOW, reading_s=0.004),
}


class HalfWay(DistantStore):
    """A call is applied in the middle of its duration: the hedged put may find the key taken before
    the first is answered.
    """

    there = 0.5


def main() -> None:
    """Print one line per load."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--half-way", action="store_true", help="apply calls in the middle of their time")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    options = parser.parse_args()
    changes = dict(each.split("=", 1) for each in options.set)
    settings = StorageSettings(**{name: float(number) for name, number in changes.items()})  # type: ignore[arg-type]
    for name, load in LOADS.items():
        store = HalfWay if options.half_way else DistantStore
        seen = run_load(load, seconds=options.seconds, settings=settings, store=store)
        share = f", {seen.share_of_window(load):.1%} of the window" if load.in_flight else ""
        print(
            f"{name}: {seen.bytes_per_s / 1e6:.2f} MB/s{share}; p50 {seen.p50_ms:.0f}, p99 {seen.p99_ms:.0f}"
            f" ms; {seen.puts_per_s:.1f} slots/s,"
            f" {seen.requests_per_s:.1f} puts/s ({seen.hedges:.1%} more), {seen.gets} read back",
            flush=True,
        )


if __name__ == "__main__":
    main()
