"""Scenario of the transaction coordinator: many transactional ids over a log in memory."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import psutil
from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.transactions.record_codec import encode_entry
from ponor_broker.transactions.records import TransactionEntry, TransactionRecord, TransactionState
from ponor_broker.transactions.settings import TransactionSettings
from ponor_kafka.record_builder import build_batch
from ponor_runtime.identity import ProducerId

from services.broker.tests.transactions.coordinator_world import PARTITIONS, TransactionWorld
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

IDS: Final = 100_000
RECORDS_PER_BATCH: Final = 100
TRANSACTION_PARTITIONS: Final = frozenset(("payments", index) for index in range(10))
MEMORY_BYTES_MAX: Final = 1 << 30
NOW_MS: Final = 1_700_000_000_000


def _entries(number: int) -> Iterator[TransactionEntry]:
    """The records of an id: created, then a transaction of ten partitions that is open."""
    name = f"payments-of-region-{number}"
    created = TransactionRecord(ProducerId(1_000 + number), 0, 60_000, TransactionState.EMPTY, NOW_MS)
    yield TransactionEntry(name, created)
    ongoing = replace(
        created,
        state=TransactionState.ONGOING,
        start_ms=NOW_MS,
        partitions=TRANSACTION_PARTITIONS,
        client_version=2,
    )
    yield TransactionEntry(name, ongoing)


def _write_logs(world: TransactionWorld) -> int:
    """Write the log of each partition; return the bytes."""
    logs: dict[int, list[tuple[int, bytes, bytes | None]]] = {index: [] for index in world.logs}
    for entry in itertools.chain.from_iterable(map(_entries, range(IDS))):
        logs[partition_for(entry.key, PARTITIONS)].append((NOW_MS, *encode_entry(entry)))
    for index, records in logs.items():
        for first in range(0, len(records), RECORDS_PER_BATCH):
            part = records[first : first + RECORDS_PER_BATCH]
            world.logs[index].append(build_batch(part, base_offset=first, leader_epoch=0))
    return sum(len(batch) for log in world.logs.values() for batch in log)


@scenario("transactions-loaded", f"a coordinator loads {IDS:,} transactional ids with open transactions")
async def transactions_loaded(recorder: TurnRecorder) -> None:
    """A failover of the broker that coordinates all of them."""
    world = TransactionWorld(TransactionSettings(transactions_memory_bytes_max=MEMORY_BYTES_MAX))
    log_bytes = _write_logs(world)
    gc.collect()
    before_bytes = psutil.Process().memory_info().rss
    recorder.start_recording()
    began_s = time.perf_counter()
    coordinator = await world.start()
    while sum(len(shard) for shard in coordinator.shards.loaded()) < IDS:
        await world.clock.settle()
    took_s = time.perf_counter() - began_s
    recorder.stop_recording()
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    print(f"loaded {log_bytes / 2**20:.0f} MiB in {took_s:.2f} s; memory + {grown_bytes / 2**20:.0f} MiB")
    assert not world.failures
    await world.kill()
