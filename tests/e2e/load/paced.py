"""An idempotent producer that sends numbered records to one partition at a steady rate and logs their
acknowledgements.

It exists for three client families, each in its own process, with analysis of pauses. A record's value is its
number in eight bytes, then zeroes. A send that fails permanently ends the run with an error.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.tools.java_programs import java_program_command

FAMILIES: Final = ("librdkafka", "java", "aiokafka")
JAVA_CLIENT: Final = "4.3.1"
NUMBER_BYTES: Final = 8
LOOK_EVERY: Final = 64
"""Records between two checks of the stop file."""
START_S_MAX: Final = 240.0
STOP_S_MAX: Final = 180.0


@dataclass(frozen=True, slots=True)
class PacedLoad:
    """Parameters of the load.

    `rate_bytes` 0: full speed. `properties` are client-specific, besides those for idempotence.
    """

    bootstrap: str
    topic: str
    partition: int
    record_bytes: int
    rate_bytes: float
    stop_file: Path
    report_file: Path
    properties: Mapping[str, str]

    def words(self) -> list[str]:
        """Encode for a command line."""
        extra = [f"{name}={value}" for name, value in self.properties.items()]
        numbers = [str(self.partition), str(self.record_bytes), str(self.rate_bytes)]
        return [self.bootstrap, self.topic, *numbers, str(self.stop_file), str(self.report_file), *extra]

    @classmethod
    def of(cls, words: list[str]) -> PacedLoad:
        """Decode from a command line."""
        bootstrap, topic, partition, record_bytes, rate_bytes, stop_file, report_file, *extra = words
        properties = dict(word.split("=", 1) for word in extra)
        return cls(
            bootstrap,
            topic,
            int(partition),
            int(record_bytes),
            float(rate_bytes),
            Path(stop_file),
            Path(report_file),
            properties,
        )


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One record: its number and offset, and when it was sent and acknowledged (CLOCK_MONOTONIC, ns)."""

    number: int
    sent_ns: int
    acknowledged_ns: int
    offset: int


class Paced:
    """A running producer, and afterwards its acknowledgements in send order."""

    def __init__(self, family: str, load: PacedLoad, process: subprocess.Popen[bytes]) -> None:
        self.family = family
        self.load = load
        self._process = process
        self.acknowledgements: list[Acknowledgement] = []

    def wait_started(self) -> None:
        """Wait for the first acknowledgement."""
        deadline = time.monotonic() + START_S_MAX
        while not (self.load.report_file.exists() and self.load.report_file.stat().st_size):
            assert self._process.poll() is None, f"the {self.family} producer ended at its start"
            assert time.monotonic() < deadline, f"the {self.family} producer got nothing acknowledged"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop sending, wait for pending sends, read the log."""
        self.load.stop_file.touch()
        code = self._process.wait(STOP_S_MAX)
        assert code == 0, f"the {self.family} producer failed"
        rows = (line.split() for line in self.load.report_file.read_text().splitlines())
        self.acknowledgements = sorted(
            (Acknowledgement(*map(int, row)) for row in rows), key=lambda each: each.number
        )

    def kill(self) -> None:
        """Kill the producer after a failure of the test."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pause_s(self, from_ns: int, until_ns: int) -> float:
        """Longest time without an acknowledgement that overlaps [from_ns, until_ns)."""
        times = sorted(each.acknowledged_ns for each in self.acknowledgements)
        gaps = (
            after - before
            for before, after in itertools.pairwise(times)
            if after > from_ns and before < until_ns
        )
        return max(gaps, default=0) / 1e9

    def latencies_s(self, from_ns: int = 0) -> list[float]:
        """Sorted latencies, from send to acknowledgement, of records sent from then on."""
        return sorted(
            (each.acknowledged_ns - each.sent_ns) / 1e9
            for each in self.acknowledgements
            if each.sent_ns >= from_ns
        )

    def bytes_per_s(self) -> float:
        """Throughput of the whole run, from the first acknowledgement to the last."""
        times = [each.acknowledged_ns for each in self.acknowledgements]
        return len(times) * self.load.record_bytes / ((max(times) - min(times)) / 1e9)


@contextmanager
def paced(
    family: str,
    directory: Path,
    *,
    bootstrap: str,
    topic: str,
    partition: int = 0,
    record_bytes: int = 5_000,
    rate_bytes: float = 5e6,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Paced]:
    """Run a producer for the duration of the block, then check that every send was acknowledged once, in
    order."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{family}-{topic}-{partition}-{time.monotonic_ns()}"
    stop_file, report_file = directory / f"{name}.stop", directory / f"{name}.acks"
    load = PacedLoad(
        bootstrap, topic, partition, record_bytes, rate_bytes, stop_file, report_file, properties or {}
    )
    if family == "java":
        command = java_program_command("PacedProducer", JAVA_CLIENT, *load.words())
    else:
        command = [sys.executable, "-m", "tests.e2e.load.paced", family, *load.words()]
    with (directory / f"{name}.out").open("wb") as output:
        running = Paced(family, load, subprocess.Popen(command, stdout=output, stderr=output))
        try:
            running.wait_started()
            yield running
            running.stop()
        finally:
            running.kill()
    _judge(running)


def _judge(running: Paced) -> None:
    rows = running.acknowledgements
    assert [row.number for row in rows] == list(range(len(rows))), "a send was not acknowledged, or twice"
    offsets = [row.offset for row in rows if row.offset >= 0]
    assert all(before < after for before, after in itertools.pairwise(offsets)), (
        f"{running.family}: acknowledged out of order"
    )


def _numbers(load: PacedLoad) -> Iterator[tuple[int, float]]:
    """Yield numbers, and how many seconds too early each one is."""
    began = time.monotonic()
    number = 0
    while number % LOOK_EVERY or not load.stop_file.exists():
        due = began + number * load.record_bytes / load.rate_bytes if load.rate_bytes else 0.0
        yield number, due - time.monotonic()
        number += 1


def _value(load: PacedLoad, number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big") + bytes(load.record_bytes - NUMBER_BYTES)


def run_librdkafka(load: PacedLoad) -> None:
    """Produce with confluent_kafka.Producer; defaults except for idempotence."""
    from confluent_kafka import Producer

    properties = {"enable.idempotence": "true", "acks": "all", "log_level": "2", **load.properties}
    producer = Producer({"bootstrap.servers": load.bootstrap, **properties})
    failures: list[str] = []
    with load.report_file.open("w", buffering=1 << 16) as report:

        def told(number: int, sent_ns: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    failures.append(f"{number}: {error}")
                    return
                offset = message.offset()
                report.write(f"{number} {sent_ns} {time.monotonic_ns()} {-1 if offset is None else offset}\n")

            return delivered

        for number, ahead_s in _numbers(load):
            until = time.monotonic() + ahead_s
            while (left := until - time.monotonic()) > 0.0005:
                producer.poll(left)
            while True:
                try:
                    sent_ns = time.monotonic_ns()
                    producer.produce(
                        load.topic,
                        value=_value(load, number),
                        partition=load.partition,
                        on_delivery=told(number, sent_ns),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
            if not number % LOOK_EVERY:
                report.flush()
            assert not failures, failures[0]
        left = producer.flush(STOP_S_MAX)
    assert not failures, failures[0]
    assert left == 0, f"{left} records were never reported"


async def run_aiokafka(load: PacedLoad) -> None:
    """Produce with aiokafka.AIOKafkaProducer; defaults except for idempotence."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=load.bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    failures: list[BaseException] = []
    waiting: dict[asyncio.Future[Any], None] = {}
    with load.report_file.open("w", buffering=1 << 16) as report:

        def told(number: int, sent_ns: int) -> Callable[[asyncio.Future[Any]], None]:
            def delivered(done: asyncio.Future[Any]) -> None:
                waiting.pop(done, None)
                error = done.exception()
                if error is not None:
                    failures.append(error)
                    return
                report.write(f"{number} {sent_ns} {time.monotonic_ns()} {done.result().offset}\n")

            return delivered

        for number, ahead_s in _numbers(load):
            if ahead_s > 0.0005:
                await asyncio.sleep(ahead_s)
            sent_ns = time.monotonic_ns()
            done = await producer.send(load.topic, _value(load, number), partition=load.partition)
            waiting[done] = None
            done.add_done_callback(told(number, sent_ns))
            if not number % LOOK_EVERY:
                report.flush()
                await asyncio.sleep(0)
            assert not failures, failures[0]
        await asyncio.wait_for(asyncio.gather(*waiting), STOP_S_MAX)
        await asyncio.sleep(0)
    await producer.stop()


def main() -> None:
    """Run one producer: FAMILY, then the arguments of `PacedLoad`."""
    family, *words = sys.argv[1:]
    load = PacedLoad.of(words)
    if family == "librdkafka":
        run_librdkafka(load)
    else:
        asyncio.run(run_aiokafka(load))


if __name__ == "__main__":
    main()
