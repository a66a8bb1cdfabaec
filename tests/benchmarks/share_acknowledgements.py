"""Acknowledgements per second of a share group: 20 Java consumers on one partition."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from confluent_kafka import Producer

from tests.benchmarks.frames import create_topic
from tests.benchmarks.subject import Subject
from tests.tools.java_programs import java_program_command
from tests.tools.share_groups import VERSION, begin_at_the_start

CONSUMERS: Final = 20
LOADS: Final = {"batches": (100, 100_000), "records": (1, 2_000)}
"""Records of a poll, and of a round. `batches`: consumers acquire whole batches (batch_optimized). A share
partition has 2,000 records in flight at most, so all can hold records. `records`: they acquire and
acknowledge one record at a time (record_limit).
"""
BATCH_RECORDS: Final = 50
RECORD_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement. `commit`: commitSync of the acknowledgements of one poll."""

    acks_per_s: float
    records_per_commit: float
    commit_p50_ms: float
    commit_p99_ms: float
    cpu_ms_per_1000_acks: float


class ShareLoad:
    """A running ShareLoad on one topic."""

    def __init__(self, subject: Subject, topic: str, records: int, process: subprocess.Popen[str]) -> None:
        self._subject = subject
        self._topic = topic
        self._records = records
        self._process = process

    def measure(self) -> Figures:
        """Write the records of a round, then let the consumers acknowledge them."""
        records = self._records
        self._fill(records)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before_s = self._subject.cpu_seconds()
        self._process.stdin.write(f"{records}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the load on {self._subject.name} ended with {self._process.wait()}"
        cpu_s = self._subject.cpu_seconds() - before_s
        elapsed_s, acks, commits, p50_us, p99_us, failed = (float(word) for word in line.split())
        assert acks == records, f"{self._subject.name}: {acks:.0f} of {records} records were acknowledged"
        assert failed == 0, f"{self._subject.name}: {failed:.0f} commits failed"
        return Figures(acks / elapsed_s, acks / commits, p50_us / 1e3, p99_us / 1e3, cpu_s * 1e6 / acks)

    def _fill(self, records: int) -> None:
        # Brokers deliver whole batches, so small ones are shared evenly.
        settings = {"bootstrap.servers": self._subject.bootstrap, "batch.num.messages": BATCH_RECORDS}
        producer = Producer({**settings, "queue.buffering.max.messages": records + 1, "linger.ms": 20})
        for _ in range(records):
            producer.produce(self._topic, bytes(RECORD_BYTES), partition=0)
        assert producer.flush(120) == 0


@contextmanager
def running_share_load(subject: Subject, load: str) -> Iterator[ShareLoad]:
    """Start the consumers on a new topic."""
    topic = f"shared-{load}"
    group = f"{topic}-group"
    create_topic(subject.bootstrap, topic, 1, dict(subject.topic_configs()))
    begin_at_the_start(subject.bootstrap, group)
    words = [subject.bootstrap, topic, group, str(CONSUMERS), str(LOADS[load][0])]
    command = java_program_command("ShareLoad", VERSION, *words)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield ShareLoad(subject, topic, LOADS[load][1], process)
        finally:
            process.kill()


def print_acknowledgements(load: str, rounds: Mapping[str, Sequence[Figures]]) -> None:
    """Print the medians, the spread of the rate, and the ratios."""
    print(
        f"{'share, ' + load:20} {'acks/s':>9} {'per commit':>11} {'commit p50':>11}"
        f" {'p99 ms':>8} {'CPU ms/1,000':>13}   acks/s least-greatest"
    )
    medians: list[Figures] = []
    for who, all_of in rounds.items():
        columns = [asdict(one) for one in all_of]
        of = Figures(**{name: statistics.median(row[name] for row in columns) for name in columns[0]})
        rates = [one.acks_per_s for one in all_of]
        print(
            f"  {who:18} {of.acks_per_s:9,.0f} {of.records_per_commit:11.1f} {of.commit_p50_ms:11.2f}"
            f" {of.commit_p99_ms:8.2f} {of.cpu_ms_per_1000_acks:13.1f}   {min(rates):,.0f}-{max(rates):,.0f}"
        )
        medians.append(of)
    ours, kafka = medians
    print(
        f"  ponor / kafka: acks/s {ours.acks_per_s / kafka.acks_per_s:.2f}x,"
        f" p99 {ours.commit_p99_ms / kafka.commit_p99_ms:.2f}x,"
        f" CPU {ours.cpu_ms_per_1000_acks / kafka.cpu_ms_per_1000_acks:.2f}x"
    )
