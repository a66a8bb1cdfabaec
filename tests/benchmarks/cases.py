"""Loads of the comparison with Apache Kafka: requests, depth, rate, and Ponor's promises.

A promise is a bound on a ratio (or a difference) of medians of one run; `report` checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.frames import fetch_frame, metadata_frame, produce_frame

PARTITIONS: Final = 16
FETCHED_PARTITIONS: Final = 4
KIB: Final = 1024
FILL_BATCHES: Final = 32
"""Batches of 64 KiB in each fetched partition: 2 MiB, twice the largest response."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound on ponor / kafka of a figure, or on the difference when `is_difference`."""

    figure: str
    bound: float
    is_upper: bool = True
    is_difference: bool = False

    def holds(self, ours: float, theirs: float) -> bool:
        """Whether the promise is kept."""
        value = self.value(ours, theirs)
        return value <= self.bound if self.is_upper else value >= self.bound

    def value(self, ours: float, theirs: float) -> float:
        """The ratio or the difference."""
        if self.is_difference:
            return ours - theirs
        return ours / theirs if theirs else float("inf")

    def __str__(self) -> str:
        relation = "≤" if self.is_upper else "≥"
        return f"{self.figure} {relation} " + (
            f"kafka + {self.bound:g}" if self.is_difference else f"{self.bound:g}x"
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One measured load. `frames` is called with the topic; `rate`: requests per second of an open loop."""

    name: str
    frames: Callable[[str], list[bytes]]
    depth: int
    payload_bytes: int
    rate: float | None = None
    is_fetch: bool = False
    promise: Promise | None = None


Frames = Callable[[str], list[bytes]]


def cases() -> list[Case]:
    """Produce with several sizes and depths, hot fetch with two sizes, metadata."""
    return [
        _fetch("fetch hot 64 KiB", 64 * KIB, Promise("cpu_s_per_gb", 0.7)),
        _fetch("fetch hot 1 MiB", 1024 * KIB, Promise("cpu_s_per_gb", 1.1)),
        _bulk("produce 64 KiB", 64 * KIB, Promise("cpu_s_per_gb", 0.9)),
        _bulk("produce 16 KiB", 16 * KIB, Promise("cpu_s_per_gb", 0.9)),
        _small(16, 1, Promise("requests_per_s", 0.6, is_upper=False)),
        _small(4, 16, Promise("requests_per_s", 1.3, is_upper=False)),
        Case(
            "produce 100 B, open loop 1,000/s",
            _produce_frames(100, 100, 16),
            1,
            100,
            rate=1000,
            promise=Promise("p99_ms", 2.0, is_difference=True),
        ),
        Case(
            "metadata of 16 partitions, 4 connections", lambda topic: [metadata_frame(topic, "m")] * 4, 1, 0
        ),
    ]


def _fetch(name: str, size: int, promise: Promise) -> Case:
    """Each connection reads the beginning of its partition repeatedly."""
    return Case(
        f"{name}, {FETCHED_PARTITIONS} connections",
        lambda topic: [fetch_frame(topic, n, 0, size, f"f{n}") for n in range(FETCHED_PARTITIONS)],
        1,
        size,
        is_fetch=True,
        promise=promise,
    )


def _bulk(name: str, batch_bytes: int, promise: Promise) -> Case:
    """Batches of records of 1 KiB."""
    frames = _produce_frames(batch_bytes, KIB, 4)
    return Case(f"{name}, 4 connections, depth 4", frames, 4, batch_bytes, promise=promise)


def _small(connections: int, depth: int, promise: Promise) -> Case:
    """Requests with one record of 100 bytes."""
    name = f"produce 100 B, {connections} connections, depth {depth}"
    return Case(name, _produce_frames(100, 100, connections), depth, 100, promise=promise)


def _produce_frames(batch_bytes: int, record_bytes: int, connections: int) -> Frames:
    return lambda topic: [
        produce_frame(topic, n % PARTITIONS, batch_bytes, record_bytes, f"p{n}") for n in range(connections)
    ]
