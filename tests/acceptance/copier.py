"""A program that copies records from one topic to another, exactly once, with librdkafka or aiokafka.

It reads `in-NAME` in a consumer group, writes the values to the same partitions of `out-NAME`, and commits
the offsets in the same transaction. Group, static member and transactional id have one name, so that a
successor of a killed process takes their place. The key of a written record is the transaction's name.
Every tenth transaction is aborted on purpose. `tests/tools/java/Copier.java` is the same program in Java.

The report has a line for each step: what, when (CLOCK_MONOTONIC, ns), transaction, its records, reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka import TopicPartition as Place
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

FATAL_EXIT: Final = 3
ON_PURPOSE: Final = "on purpose"
ABORT_EVERY: Final = 10
CALL_S_MAX: Final = 300.0
POLL_S: Final = 0.1
RECORDS_MAX: Final = 500
START_AGAIN_S: Final = 0.5
IDLE_MS_MAX: Final = 10_000
"""Since 2.10, librdkafka waits in send_offsets_to_transaction for a coordinator that was removed from the
metadata (its issue 5511), until any connection changes its state: at the latest when it is closed as idle."""
MOVED: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Errors of `committed` while the coordinator of the group moves; librdkafka does not call them retriable."""
LENGTHS: Final = 8
"""Transactions stay open for 0.2 to 1.6 seconds, in turn."""


@dataclass(frozen=True, slots=True)
class CopyWork:
    """What a copier does; `incarnation` counts the processes of one name."""

    bootstrap: str
    name: str
    incarnation: int
    timeout_ms: int
    stop_file: Path
    report_file: Path

    def words(self) -> list[str]:
        """Encode for a command line."""
        numbers = [str(self.incarnation), str(self.timeout_ms)]
        return [self.bootstrap, self.name, *numbers, str(self.stop_file), str(self.report_file)]

    @classmethod
    def of(cls, words: list[str]) -> CopyWork:
        """Decode from a command line."""
        bootstrap, name, incarnation, timeout_ms, stop_file, report_file = words
        return cls(bootstrap, name, int(incarnation), int(timeout_ms), Path(stop_file), Path(report_file))

    @property
    def source(self) -> str:
        """Topic that is read."""
        return f"in-{self.name}"

    @property
    def target(self) -> str:
        """Topic that is written."""
        return f"out-{self.name}"

    @property
    def identity(self) -> str:
        """Name of group, static member and transactional id."""
        return f"copy-{self.name}"

    def is_over(self) -> bool:
        """Whether the process should end."""
        return self.stop_file.exists()


class Report:
    """Lines in a file, each written at once, because the process may be killed at any time."""

    def __init__(self, work: CopyWork) -> None:
        self._file = work.report_file.open("a", buffering=1)
        self._prefix = f"{work.name}.{work.incarnation}"
        self._number = 0
        self.records = 0

    @property
    def transaction(self) -> str:
        """Name of the current transaction."""
        return f"{self._prefix}.{self._number}"

    def begin(self) -> float:
        """Report a new transaction. Returns the time at which it should end."""
        self._number += 1
        self.records = 0
        self.say("open")
        return time.monotonic() + 0.2 * (1 + self._number % LENGTHS)

    def is_for_abort(self) -> bool:
        """Whether the transaction is aborted on purpose."""
        return self._number % ABORT_EVERY == 0

    def say(self, what: str, reason: object = "") -> None:
        """Write a line."""
        text = " ".join(str(reason).split())
        self._file.write(f"{what} {time.monotonic_ns()} {self.transaction} {self.records} {text}\n")


class LibrdkafkaCopier:
    """Copies with confluent_kafka."""

    def __init__(self, work: CopyWork) -> None:
        self._work = work
        self._report = Report(work)
        self._is_rebalanced = False
        common = {"bootstrap.servers": work.bootstrap, "log_level": 4}
        self._producer = Producer(
            {
                **common,
                "transactional.id": work.identity,
                "transaction.timeout.ms": work.timeout_ms,
                "connections.max.idle.ms": IDLE_MS_MAX,
            }
        )
        self._repeat(lambda: self._producer.init_transactions(CALL_S_MAX))
        self._consumer = Consumer(
            {
                **common,
                "group.id": work.identity,
                "group.instance.id": work.identity,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([work.source], on_assign=self._rebalanced, on_revoke=self._rebalanced)
        self._report.say("ready")

    def run(self) -> None:
        """Copy until the stop file exists."""
        while not self._work.is_over():
            messages = self._poll()
            if messages:
                try:
                    self._transaction(messages)
                except KafkaException as error:
                    self._abort(_described(self._cause(error)))
        self._consumer.close()

    def _cause(self, error: KafkaException) -> KafkaException:
        """Return the error that the transaction must be aborted for; raise any other."""
        if error.args[0].code() == KafkaError._STATE:
            # The transaction failed before; only the end of a transaction returns the reason.
            try:
                self._producer.commit_transaction(CALL_S_MAX)
            except KafkaException as cause:
                error = cause
        if error.args[0].fatal() or not error.args[0].txn_requires_abort():
            raise error
        return error

    def _transaction(self, messages: list[Message]) -> None:
        self._is_rebalanced = False
        self._producer.begin_transaction()
        ends_s = self._report.begin()
        offsets: dict[int, int] = {}
        while True:
            self._send(messages, offsets)
            if self._is_rebalanced:
                self._abort("the group was rebalanced")
                return
            if time.monotonic() >= ends_s:
                break
            messages = self._poll()
        # An abort drops records that wait, but keeps their sequence numbers.
        self._producer.flush(CALL_S_MAX)
        rows = [TopicPartition(self._work.source, *row) for row in offsets.items()]
        metadata = self._consumer.consumer_group_metadata()
        self._repeat(lambda: self._producer.send_offsets_to_transaction(rows, metadata, CALL_S_MAX))
        if self._report.is_for_abort():
            self._abort(ON_PURPOSE)
            return
        self._report.say("end")
        self._repeat(lambda: self._producer.commit_transaction(CALL_S_MAX))
        self._report.say("commit")

    def _poll(self) -> list[Message]:
        messages = self._consumer.consume(RECORDS_MAX, POLL_S)
        for message in messages:
            if message.error() is not None:
                self._report.say("note", message.error())
        return [message for message in messages if message.error() is None]

    def _send(self, messages: list[Message], offsets: dict[int, int]) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            key = self._report.transaction.encode()
            self._producer.produce(self._work.target, message.value(), key, partition)
            offsets[partition] = offset + 1
            self._report.records += 1
        self._producer.poll(0)

    def _abort(self, reason: str) -> None:
        self._repeat(lambda: self._producer.abort_transaction(CALL_S_MAX))
        self._report.say("abort", reason)
        assigned = self._consumer.assignment()
        for row in self._repeat(lambda: self._consumer.committed(assigned, CALL_S_MAX), MOVED):
            self._consumer.seek(TopicPartition(row.topic, row.partition, max(0, row.offset)))

    def _repeat(self, call: Callable[[], Any], passing: frozenset[str] = frozenset()) -> Any:
        """Repeat a call while the client calls its error retriable, or the error is one of `passing`."""
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].name() not in passing:
                    raise
                time.sleep(POLL_S)
                self._report.say("retry", _described(error))

    def _rebalanced(self, _consumer: object, _partitions: object) -> None:
        self._is_rebalanced = True


def _described(error: BaseException) -> str:
    if isinstance(error, KafkaException):
        cause = error.args[0]
        return f"{cause.name()}: {cause.str()}"
    return f"{type(error).__name__}: {error}"


class AiokafkaCopier(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Copies with aiokafka."""

    def __init__(self, work: CopyWork) -> None:
        self._work = work
        self._report = Report(work)
        self._is_rebalanced = False
        self._producer = AIOKafkaProducer(
            bootstrap_servers=work.bootstrap,
            transactional_id=work.identity,
            transaction_timeout_ms=work.timeout_ms,
        )
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=work.bootstrap,
            group_id=work.identity,
            group_instance_id=work.identity,
            session_timeout_ms=45_000,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    async def run(self) -> None:
        """Copy until the stop file exists."""
        await self._start(self._producer)
        await self._start(self._consumer)
        self._consumer.subscribe([self._work.source], listener=self)
        self._report.say("ready")
        while not self._work.is_over():
            batches = await self._poll()
            if batches:
                try:
                    await self._transaction(batches)
                except AiokafkaError as error:
                    await self._abort(_described(error))
        await self._consumer.stop()
        await self._producer.stop()

    async def _start(self, client: Any) -> None:
        while True:
            try:
                await client.start()
            except AiokafkaError as error:
                self._report.say("retry", _described(error))
                await asyncio.sleep(START_AGAIN_S)
            else:
                return

    async def _transaction(self, batches: dict[Any, Any]) -> None:
        self._is_rebalanced = False
        await self._producer.begin_transaction()
        ends_s = self._report.begin()
        offsets: dict[Any, int] = {}
        sent: list[Any] = []
        while True:
            sent += await self._send(batches, offsets)
            if self._is_rebalanced:
                await self._abort("the group was rebalanced")
                return
            if time.monotonic() >= ends_s:
                break
            batches = await self._poll()
        await asyncio.gather(*sent)
        await self._producer.send_offsets_to_transaction(offsets, self._work.identity)
        if self._report.is_for_abort():
            await self._abort(ON_PURPOSE)
            return
        self._report.say("end")
        await self._producer.commit_transaction()
        self._report.say("commit")

    async def _poll(self) -> dict[Any, Any]:
        found: dict[Any, Any] = await self._consumer.getmany(
            timeout_ms=int(1000 * POLL_S), max_records=RECORDS_MAX
        )
        return found

    async def _send(self, batches: dict[Any, Any], offsets: dict[Any, int]) -> list[Any]:
        key = self._report.transaction.encode()
        sent = []
        for place, records in batches.items():
            for record in records:
                sent.append(
                    await self._producer.send(self._work.target, record.value, key, partition=place.partition)
                )
                self._report.records += 1
            offsets[place] = records[-1].offset + 1
        return sent

    async def _abort(self, reason: str) -> None:
        await self._producer.abort_transaction()
        self._report.say("abort", reason)
        for place in self._consumer.assignment():
            offset = await self._consumer.committed(place)
            self._consumer.seek(place, offset or 0)

    def on_partitions_revoked(self, revoked: list[Place]) -> None:
        """Note that the positions of the open transaction are void."""
        self._is_rebalanced = True

    def on_partitions_assigned(self, assigned: list[Place]) -> None:
        """Note that the positions of the open transaction are void."""
        self._is_rebalanced = True


async def _run_aiokafka(work: CopyWork) -> None:
    # aiokafka's clients take the running event loop when they are created.
    await AiokafkaCopier(work).run()


def main() -> None:
    """Run one copier: FAMILY, then the words of `CopyWork`. A fatal error is the last line of the report."""
    family, *words = sys.argv[1:]
    work = CopyWork.of(words)
    try:
        if family == "librdkafka":
            LibrdkafkaCopier(work).run()
        else:
            asyncio.run(_run_aiokafka(work))
    except Exception as error:
        with work.report_file.open("a") as file, contextlib.redirect_stdout(file):
            text = " ".join(_described(error).split())
            print(f"fatal {time.monotonic_ns()} {work.name}.{work.incarnation} 0 {text}")
        raise SystemExit(FATAL_EXIT) from error


if __name__ == "__main__":
    main()
