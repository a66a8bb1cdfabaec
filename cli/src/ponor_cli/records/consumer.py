"""One run of `ponor topic consume` with aiokafka's consumer: where it starts, what it writes, and
when it ends.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from ponor_cli.errors import CommandError
from ponor_cli.records.client_library import (
    CLIENT_ID,
    LastWarning,
    check_partition,
    describe_error,
    ignore_unretrieved,
    partitions_of,
    quiet_library,
    stop_client,
)
from ponor_cli.records.text import TABLE_HEAD, RecordFormat, render

POLL_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 30_000
REBALANCE_TIMEOUT_MS: Final = 60_000
JOIN_S_MAX: Final = 330.0
"""Longer than the five minutes that a Java member may take to join a rebalance."""
COMMIT_S_MAX: Final = 10.0
SILENCE_S_MAX: Final = 30.0
"""Timeout, because aiokafka repeats a refused fetch forever."""
_START: Final = re.compile(r"earliest|latest|(?P<sign>[-@]?)(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Consumption:
    """Options of a run. If `start` is None, it begins at the group's offsets, or else at the end."""

    start: str | None
    partitions: list[int]
    records_max: int | None
    group: str | None
    follow: bool
    form: RecordFormat
    separator: bytes | None


def consume_until_done(bootstrap: str, topic: str, wanted: Consumption, out: BinaryIO) -> None:
    """Write records until `records_max` are written, or without `--follow` the end is reached.

    Raises:
        CommandError: an option is invalid, or a partition or the group refuses.
        BrokenPipeError: the reader closed `out`.
    """
    start = StartOffset(wanted.start or "latest")
    known = partitions_of(bootstrap, topic)
    for partition in wanted.partitions:
        check_partition(topic, known, partition)
    if wanted.form is RecordFormat.TABLE:
        out.write(TABLE_HEAD)
        out.flush()
    partitions = [TopicPartition(topic, number) for number in wanted.partitions or known]
    with quiet_library() as warning:
        asyncio.run(_consume(bootstrap, partitions, wanted, start, out, warning))


class StartOffset:
    """A parsed `--offset`.

    Raises:
        CommandError: the text is none of the known forms.
    """

    def __init__(self, text: str) -> None:
        match = _START.fullmatch(text)
        if match is None:
            raise CommandError(
                f"--offset {text}: write earliest, latest, N, -N (the last N) or @MILLISECONDS"
            )
        self._text = text
        self._sign = match["sign"]
        self._number = int(match["number"] or 0)

    async def find(
        self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the start offsets. A time after the last record gives the end offset."""
        if self._text == "earliest":
            found: dict[TopicPartition, int] = await consumer.beginning_offsets(partitions)
            return found
        if self._sign == "" and self._text != "latest":
            return dict.fromkeys(partitions, self._number)
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        if self._sign == "-":
            firsts = await consumer.beginning_offsets(partitions)
            return {each: max(firsts[each], ends[each] - self._number) for each in partitions}
        if self._sign == "@":
            times = await consumer.offsets_for_times(dict.fromkeys(partitions, self._number))
            return {each: times[each].offset if times[each] else ends[each] for each in partitions}
        return ends


async def _consume(
    bootstrap: str,
    partitions: Sequence[TopicPartition],
    wanted: Consumption,
    start: StartOffset,
    out: BinaryIO,
    warning: LastWarning,
) -> None:
    ignore_unretrieved()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id=CLIENT_ID,
        group_id=wanted.group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
    )
    run = ConsumerRun(consumer, wanted, start, out, warning)
    try:
        await run.begin(partitions)
        await run.copy()
    except KafkaError as error:
        raise CommandError(f"topic {partitions[0].topic}: {describe_error(error)}{warning.text}") from error
    finally:
        try:
            await run.commit()
        finally:
            await stop_client(consumer.stop())


class ConsumerRun(ConsumerRebalanceListener):  # type: ignore[misc]
    """Copies records to the output. As a group member it also follows the group's assignments.

    It commits only the offsets of written records: when the group revokes partitions, and at the end. There
    is no `await` between a poll and its output, so no record is read but not written when a rebalance
    begins.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        wanted: Consumption,
        start: StartOffset,
        out: BinaryIO,
        warning: LastWarning,
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._start = start
        self._out = out
        self._warning = warning
        self._left = wanted.records_max
        self._is_assigned = False
        self._ends: dict[TopicPartition, int] = {}
        """End offsets at the assignment; without `--follow` the run ends there."""
        self._written: dict[TopicPartition, int] = {}
        """By partition: the offset after the last written record."""
        self._polled_at_ms: dict[TopicPartition, int | None] = {}
        self._silent_s: dict[TopicPartition, float] = {}
        self._failure: KafkaError | None = None

    async def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Connect, and take the partitions or join the group.

        Raises:
            CommandError: the group assigns nothing within `JOIN_S_MAX`.
            KafkaError: the cluster or the group refuses.
        """
        if self._wanted.group is None:
            await self._consumer.start()
            starts = await self._start.find(self._consumer, partitions)
            ends = await self._consumer.end_offsets(partitions)
            self._consumer.assign(partitions)
            self._seek(starts, ends)
            return
        self._consumer.subscribe([partitions[0].topic], listener=self)
        try:
            async with asyncio.timeout(JOIN_S_MAX):
                await self._consumer.start()
        except TimeoutError as error:
            raise CommandError(
                f"group {self._wanted.group}: no assignment within {JOIN_S_MAX:.0f} s{self._warning.text}"
            ) from error

    async def copy(self) -> None:
        """Write records until the run is over.

        Raises:
            CommandError: a partition cannot be read for `SILENCE_S_MAX`, or has a record that
                aiokafka cannot decode.
            KafkaError: a partition or the group refuses.
        """
        loop = asyncio.get_running_loop()
        while not await self._is_over():
            polled_s = loop.time()
            try:
                found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=self._left)
            except OffsetOutOfRangeError as error:
                await self._reset(error.args[0])
            except UnicodeDecodeError as error:
                raise CommandError(self._describe_undecodable(error)) from error
            except NoOffsetForPartitionError:
                # `on_partitions_assigned` is still looking up the first offsets.
                await asyncio.sleep(POLL_MS / 1000)
            else:
                self._write(found)
                self._check_silence(loop.time() - polled_s)
            if self._failure is not None:
                raise self._failure

    async def commit(self) -> None:
        """Commit the offsets of the written records. A rebalancing group refuses the commit; then the
        next owner reads these records again.

        Raises:
            CommandError: the coordinator refuses or does not answer.
        """
        owned = self._consumer.assignment()
        written = {each: offset for each, offset in self._written.items() if each in owned}
        if self._wanted.group is None or not written:
            return
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                await self._consumer.commit(written)
        except (CommitFailedError, IllegalStateError):
            return
        except (KafkaError, TimeoutError) as error:
            raise CommandError(
                f"group {self._wanted.group}: the offsets of the last records are not committed, so"
                f" the group reads them again: {describe_error(error)}{self._warning.text}"
            ) from error

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:  # noqa: ARG002 - all of them
        """Commit, so that the next owner starts after the written records."""
        self._is_assigned = False
        # If the commit fails, the next owner reads the last records again.
        with suppress(CommandError):
            await self.commit()

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Start at the group's committed offsets, or at `--offset` where the group has not committed one."""
        try:
            committed = {each: await self._consumer.committed(each) for each in assigned}
            fresh = [each for each, offset in committed.items() if offset is None]
            starts = await self._start.find(self._consumer, fresh)
            ends = await self._consumer.end_offsets(assigned)
        except KafkaError as error:
            self._failure = error  # aiokafka only logs the errors of a listener
        else:
            self._seek({**committed, **starts}, ends)

    def _seek(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        # Seek in every partition: a poll may have moved the positions since the assignment.
        for partition, offset in starts.items():
            self._consumer.seek(partition, offset)
        self._written = dict(starts)
        self._ends = dict(ends)
        self._polled_at_ms.clear()
        self._silent_s.clear()
        self._is_assigned = True

    async def _is_over(self) -> bool:
        if self._left == 0:
            return True
        if self._wanted.follow or not self._is_assigned:
            return False
        try:
            return all([await self._consumer.position(each) >= end for each, end in self._ends.items()])
        except IllegalStateError:  # a rebalance took the partition
            return False

    def _write(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        if not self._is_assigned:
            return
        written: dict[TopicPartition, int] = {}
        for partition, records in found.items():
            end = None if self._wanted.follow else self._ends[partition]
            for record in records:
                if end is not None and record.offset >= end:
                    break
                self._out.write(
                    render(
                        record,
                        partition.topic,
                        partition.partition,
                        self._wanted.form,
                        self._wanted.separator,
                    )
                )
                written[partition] = record.offset + 1
                if self._left is not None:
                    self._left -= 1
        self._out.flush()
        # Only after the flush: on a full disk or a closed pipe, buffered records may be lost.
        self._written.update(written)

    def _check_silence(self, waited_s: float) -> None:
        """Add the duration of a poll to the silence of every partition for which it returned no answer.

        Raises:
            CommandError: no answer arrived for a partition for `SILENCE_S_MAX`.
        """
        for partition in self._consumer.assignment():
            polled_at_ms = self._consumer.last_poll_timestamp(partition)
            is_answered = polled_at_ms != self._polled_at_ms.get(partition)
            self._polled_at_ms[partition] = polled_at_ms
            self._silent_s[partition] = 0.0 if is_answered else self._silent_s.get(partition, 0.0) + waited_s
            if self._silent_s[partition] > SILENCE_S_MAX:
                raise CommandError(
                    f"{partition.topic}-{partition.partition} cannot be read at offset"
                    f" {self._written[partition]}: no answer"
                    f" from its leader for {SILENCE_S_MAX:.0f} s; `ponor partition list"
                    f" {partition.topic}` shows the leaders{self._warning.text}"
                )

    async def _reset(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue at the nearest offset: retention deleted the position, or the topic was recreated."""
        firsts = await self._consumer.beginning_offsets(positions)
        ends = await self._consumer.end_offsets(positions)
        for partition, position in positions.items():
            nearest = firsts[partition] if position < firsts[partition] else ends[partition]
            self._consumer.seek(partition, nearest)
            sys.stderr.write(
                f"ponor: {partition.topic}-{partition.partition} has no offset {position};"
                f" continuing at {nearest}\n"
            )

    def _describe_undecodable(self, error: UnicodeDecodeError) -> str:
        """Return the message for a header name that is not UTF-8; aiokafka's error has no position."""
        places = ", ".join(
            f"{each.topic}-{each.partition} after offset {offset - 1}"
            for each, offset in sorted(self._written.items())
        )
        return (
            f"a record has a header whose name is not UTF-8 ({error.object[:32]!r}), in one of {places};"
            " continue after it with --partition and --offset"
        )
