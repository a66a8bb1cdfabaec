"""The fast path of Produce against the general path: same answers and same bytes in the log for any configs
and requests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import pytest
from crc32c import crc32c
from ponor_broker.handlers.produce.plain_produce import PlainPending, PlainProduceHandler
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.record_batch import ATTRIBUTES_POSITION, CRC_POSITION
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_runtime.telemetry import Telemetry
from s3stream.records import StreamRecord

from services.broker.tests.handlers.produce.test_produce_path import Client, produce, settle
from services.broker.tests.partition_rig import PartitionRig, SteppedClock

NOW_MS: Final = SteppedClock().now_ms
CONFIGS: Final = {
    "defaults": TopicConfig(),
    "LogAppendTime": TopicConfig(is_log_append_time=True),
    "compacted": TopicConfig(is_compacted=True),
    "old timestamps refused": TopicConfig(timestamp_before_ms_max=1_000, timestamp_after_ms_max=1_000),
    "small batches": TopicConfig(message_bytes_max=200),
    "small segments": TopicConfig(segment_bytes=900),
    "a codec of its own": TopicConfig(compression="lz4"),
}


@dataclass
class Producer:
    """An idempotent producer, or none, that sometimes repeats itself or skips."""

    rng: random.Random
    sequence: int = 0

    def batch(self) -> bytearray:
        rng = self.rng
        records = [
            NewRecord(
                NOW_MS + rng.choice((0, 1, -900, 5_000, -5_000)) if rng.randrange(6) else -1,
                rng.choice((b"key", b"key", None)),
                rng.randbytes(rng.choice((10, 10, 100, 3_000))),
            )
            for _ in range(rng.choice((1, 1, 3)))
        ]
        if rng.randrange(2):
            return build_batch(records)
        self.sequence = max(self.sequence + rng.choice((0, 0, 0, 0, -1, 1)), 0)
        made = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=self.sequence)
        self.sequence += len(records)
        return made

    def frame(self, number: int) -> bytes:
        """Draw a request; most are valid."""
        rng = self.rng
        batch = self.batch()
        kind = rng.randrange(12)
        if kind == 0:
            batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            batch[rng.choice((21, 22, 26, 35, 57, 61, 62))] ^= rng.choice((1, 8, 16))
            batch[CRC_POSITION : CRC_POSITION + 4] = crc32c(bytes(batch[ATTRIBUTES_POSITION:])).to_bytes(
                4, "big"
            )
        return produce(
            number,
            (0, batch),
            acks=rng.choice((-1, -1, -1, 1, 0 if kind > 1 else 1)),
            topic="unknown" if kind == 2 else "t",
        )


async def _client(config: TopicConfig, *, is_short: bool) -> Client:
    rig = PartitionRig(config=config)
    return Client(rig, await rig.open(), is_short=is_short)


@pytest.mark.parametrize("name", CONFIGS)
async def test_both_paths_give_the_same_answers_and_bytes(name: str) -> None:
    for seed in range(12):
        rng = random.Random(f"{name} {seed}")
        short = await _client(CONFIGS[name], is_short=True)
        long = await _client(CONFIGS[name], is_short=False)
        producer = Producer(rng)
        for number in range(60):
            event = rng.randrange(20)
            hold, is_full = event == 0, event == 1
            fails = number > 40 and event == 2
            frame = producer.frame(number)
            for client in (short, long):
                client.log.hold, client.log.is_full = hold, is_full
                client.send(frame)
                if fails:
                    client.log.fail()
                await settle()
        for client in (short, long):
            client.log.hold = False
            client.log.confirm()
            await settle()
        assert short.wire.answers == long.wire.answers
        assert [str(reason) for reason in short.wire.ended] == [str(reason) for reason in long.wire.ended]
        assert [stored(record) for record in short.log.records] == [
            stored(record) for record in long.log.records
        ]
        assert counted(short.telemetry) == counted(long.telemetry)
        assert short.flow.in_flight.held_bytes == long.flow.in_flight.held_bytes == 0


def stored(record: StreamRecord) -> tuple[int, int, int, int, bytes]:
    return record.base_offset, record.count, record.max_timestamp, record.min_timestamp, bytes(record.payload)


def counted(telemetry: Telemetry) -> list[int]:
    return [value for _, value in telemetry.counters("ponor_kafka_requests_total")]


async def test_plain_requests_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[PlainPending | None] = []
    start = PlainProduceHandler.start

    def watched(*arguments: object) -> PlainPending | None:
        taken.append(start(*arguments))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(PlainProduceHandler, "start", watched)
    client = await _client(TopicConfig(), is_short=True)
    for number in range(4):
        batch = build_batch(
            [NewRecord(NOW_MS, None, bytes(size)) for size in (10, 3_000 * (number % 2))],
            producer_id=7,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        client.send(produce(number, (0, batch)))
        await settle()
    assert [request is not None for request in taken] == [
        False,
        True,
        True,
        True,
    ]  # the first introduces the producer
    assert client.wire.outcomes() == [(number, [(0, 2 * number)]) for number in range(4)]


async def test_a_traced_request_takes_the_general_path(monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _client(TopicConfig(), is_short=True)

    class EverythingTraced:
        def begin(self, *_: object, **__: object) -> None:
            begun.append(1)

    begun: list[int] = []
    monkeypatch.setattr(client.telemetry, "tracing", EverythingTraced())
    client.send(produce(1))
    await settle()
    assert begun
    assert client.wire.outcomes() == [(1, [(0, 0)])]
