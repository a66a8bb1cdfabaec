"""The log of one partition of `__consumer_offsets`: entries in, record batches out, and back again on load.

What lives here: batches, the outcome of writes as Kafka error codes, replay. Which entries there are is decided in `shard.py`, their bytes
in `record_codec.py`. The log is append-only: a later entry of a key replaces the earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from s3stream.errors import S3StreamError, StreamClosedError, StreamFencedError, StreamNotFoundError

from ponor_broker.groups.ports import OFFSETS_TOPIC, AppendResult, OffsetsPartition
from ponor_broker.groups.record_codec import OffsetsRecordError, decode_entry, encode_entry
from ponor_broker.groups.records import Entry


class OffsetsLogCorruptError(Exception):
    """A batch or record of the log breaks its format; the message names partition, offset and rule."""


@dataclass(slots=True)
class _Write:
    """A batch under way, and whom to tell."""

    then: Callable[[ErrorCode], None]
    outcome: ErrorCode | None = None


class OffsetsLog:
    """One open partition."""

    def __init__(
        self,
        partition: OffsetsPartition,
        *,
        now_ms: Callable[[], int],
        batch_bytes_max: int,
        in_flight_max: int,
        load_bytes_max: int,
    ) -> None:
        self._partition = partition
        self._now_ms = now_ms
        self._batch_bytes_max = batch_bytes_max
        self._in_flight_max = in_flight_max
        self._load_bytes_max = load_bytes_max
        self._in_flight: deque[_Write] = deque()

    @property
    def name(self) -> str:
        """For messages."""
        return f"{OFFSETS_TOPIC}-{self._partition.index}"

    def append(self, entries: Sequence[Entry], then: Callable[[ErrorCode], None]) -> None:
        """Write entries as one batch: all of them become durable, or none.

        `then` is called once, never within this call: with NONE when the entries are durable, and that strictly in the order of the log;
        with MESSAGE_TOO_LARGE, or with a retriable code of the group APIs, when they were not taken.
        """
        assert entries
        now_ms = self._now_ms()
        batch = build_batch([(now_ms, *encode_entry(entry)) for entry in entries])
        if len(batch) > self._batch_bytes_max:
            error = ErrorCode.MESSAGE_TOO_LARGE
        elif len(self._in_flight) >= self._in_flight_max:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            error = self._submit(batch, then)
        if error is not ErrorCode.NONE:
            asyncio.get_running_loop().call_soon(then, error)

    def _submit(self, batch: bytearray, then: Callable[[ErrorCode], None]) -> ErrorCode:
        try:
            appended = self._partition.append_batch(batch)
        except S3StreamError as error:
            return _code_of(error)
        write = _Write(then)
        self._in_flight.append(write)
        appended.add_done_callback(partial(self._ended, write))
        return ErrorCode.NONE

    def _ended(self, write: _Write, appended: asyncio.Future[AppendResult]) -> None:
        error = StreamClosedError("cancelled") if appended.cancelled() else appended.exception()
        write.outcome = ErrorCode.NONE if error is None else _code_of(error)
        # Futures that end together may be seen in any order; memory has to follow the order of the log.
        while self._in_flight and (outcome := self._in_flight[0].outcome) is not None:
            self._in_flight.popleft().then(outcome)

    async def replay(self) -> AsyncIterator[Entry]:
        """Every entry from the start of the log to its end, in order, tombstones included.

        Raises:
            S3StreamError: unreadable now; replay again later.
            OffsetsLogCorruptError: damaged.
        """
        offset = self._partition.log_start_offset
        while batches := await self._partition.read_batches(offset, self._load_bytes_max):
            for batch in batches:
                view, entries = self._decode(batch, offset)
                for entry in entries:
                    yield entry
                offset = view.next_offset

    def _decode(self, batch: memoryview, offset: int) -> tuple[BatchView, list[Entry]]:
        try:
            view = BatchView(batch)
            view.check_crc()
            if view.next_offset <= offset:
                raise KafkaWireError(f"the batch ends at {view.next_offset}, before what was asked for")
            if view.is_control:
                return view, []
            records = view.records(self._batch_bytes_max)
            return view, [e for r in records if (e := decode_entry(r.key, r.value)) is not None]
        except (KafkaWireError, OffsetsRecordError) as error:
            raise OffsetsLogCorruptError(f"{self.name} from offset {offset} on: {error}") from error


def _code_of(error: BaseException) -> ErrorCode:
    """All retriable: after NOT_COORDINATOR clients look the coordinator up again, after NOT_AVAILABLE they also wait."""
    if isinstance(error, StreamFencedError | StreamClosedError | StreamNotFoundError):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
