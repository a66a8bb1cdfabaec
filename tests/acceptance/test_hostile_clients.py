"""15,000 hostile or idle connections, and normal clients at the same time: normal clients are
served, and memory stays within the budgets.

PONOR_CONNECTIONS sets the number.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import psutil
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic
from tests.hostile.clients import (
    Crowd,
    announce,
    api_versions_frame,
    bomb_batch,
    crowd,
    produce_frame,
    send_bytes,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONNECTIONS: Final = int(os.environ.get("PONOR_CONNECTIONS", "15000"))
MIB: Final = 1 << 20
BUDGETS: Final = {
    "receive_bytes_max": 64 * MIB,
    "in_flight_bytes_max": 64 * MIB,
    "log_cache_bytes_max": 64 * MIB,
    "block_cache_bytes_max": 32 * MIB,
    "fetch_answers_bytes_max": 64 * MIB,
}
ALLOWANCE_BYTES: Final = 100 * MIB
ROUND_TRIP_S_MAX: Final = 5.0
BOMB_UNPACKED_BYTES: Final = 30 << 30
HALF_REQUEST: Final = announce(4_000) + b"\0\x03\0\x0c" + bytes(50)


def test_normal_clients_are_served_and_memory_stays_within_the_budgets(tmp_path: Path) -> None:
    _allow_open_files()
    cluster = LocalCluster(tmp_path, settings={**BUDGETS, "connections_max": 20_000})
    with cluster, crowd(cluster.kafka_port) as hostile:
        create_topic(cluster, "good", 4)
        _round_trip(cluster, b"before")
        pid = cluster.process("broker")["pid"]
        idle_rss = psutil.Process(pid).memory_info().rss
        with _peak_rss(pid) as peak, _served_meanwhile(cluster) as round_trips:
            for behave in (_do_nothing, _send_half, _lie_about_lengths, _trickle, _never_read, _explode):
                behave(hostile)
            time.sleep(5.0)
        assert cluster.process("broker")["pid"] == pid, "the broker was restarted"
        grown = peak[0] - idle_rss
        print(
            f"\n{len(hostile.sockets):,} connections, {hostile.still_connected():,} still open;"
            f" {len(round_trips)} round trips "
            f"meanwhile, the longest {max(round_trips):.2f} s; RSS {idle_rss / MIB:.0f} MiB idle, at most +"
            f" {grown / MIB:.0f} MiB"
        )
        assert len(round_trips) >= 5
        assert grown <= sum(BUDGETS.values()) + ALLOWANCE_BYTES


def _do_nothing(hostile: Crowd) -> None:
    hostile.join(CONNECTIONS * 6 // 10)


def _send_half(hostile: Crowd) -> None:
    for connection in hostile.join(CONNECTIONS // 10):
        send_bytes(connection, HALF_REQUEST)
    for connection in hostile.join(CONNECTIONS // 20):
        send_bytes(connection, announce(100))


def _lie_about_lengths(hostile: Crowd) -> None:
    lies = [-1, -(1 << 31), 0, 1, (1 << 31) - 1, 104_857_601, 104_857_600, 50 * MIB, 10 * MIB]
    for number, connection in enumerate(hostile.join(CONNECTIONS // 10)):
        send_bytes(connection, announce(lies[number % len(lies)]) + bytes(20))


def _trickle(hostile: Crowd) -> None:
    """One byte at a time: within a request's stall limit, but never complete."""
    slow = hostile.join(CONNECTIONS // 20)
    frame = announce(64 << 10) + bytes(100)
    for position in range(20):
        for connection in slow:
            send_bytes(connection, frame[position : position + 1])
        time.sleep(0.1)


def _never_read(hostile: Crowd) -> None:
    """Many requests, without reading a response."""
    frame = api_versions_frame()
    for connection in hostile.join(CONNECTIONS // 20):
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(frame * 500)


def _explode(hostile: Crowd) -> None:
    """1 MiB that decompresses to 30 GiB, and random bytes."""
    frame = produce_frame("good", bomb_batch(BOMB_UNPACKED_BYTES))
    for connection in hostile.join(8):
        send_bytes(connection, frame)
    rng = random.Random(4)
    for connection in hostile.join(CONNECTIONS // 50):
        send_bytes(connection, announce(500) + rng.randbytes(500))


@contextlib.contextmanager
def _served_meanwhile(cluster: LocalCluster) -> Iterator[list[float]]:
    """Produce and consume repeatedly in the background; return the durations in seconds."""
    durations: list[float] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                _round_trip(cluster, b"meanwhile-%d" % number)
            except BaseException as error:
                failures.append(error)
                return
            durations.append(time.monotonic() - began)
            number += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield durations
    finally:
        stop.set()
        worker.join()
    assert not failures, failures[0]


def _round_trip(cluster: LocalCluster, value: bytes) -> None:
    """Produce one record with a new producer, consume it with a new consumer."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    landed: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        landed.append(cast("int", message.offset()))

    producer.produce("good", value, partition=1, on_delivery=delivered)
    producer.flush(ROUND_TRIP_S_MAX)
    assert landed, f"no acknowledgement in {ROUND_TRIP_S_MAX} s"
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "x", "enable.auto.commit": False}
    )
    try:
        _read_at(consumer, landed[0], value)
    finally:
        consumer.close()


def _read_at(consumer: Consumer, offset: int, value: bytes) -> None:
    consumer.assign([TopicPartition("good", 1, offset)])
    message = consumer.poll(ROUND_TRIP_S_MAX)
    assert message is not None, f"no record in {ROUND_TRIP_S_MAX} s"
    assert message.error() is None
    assert message.value() == value


@contextlib.contextmanager
def _peak_rss(pid: int) -> Iterator[list[int]]:
    """The largest resident memory, sampled ten times per second."""
    peak = [0]
    stop = threading.Event()
    process = psutil.Process(pid)

    def watch() -> None:
        while not stop.wait(0.1):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 1_000:
        pytest.skip(f"the limit of open files is {hard}; {CONNECTIONS + 1_000} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert soft <= hard
