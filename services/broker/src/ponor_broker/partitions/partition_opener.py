"""Opening partitions: from a leader epoch in the image to a partition that serves.

What lives here: the steps of one batch of opens (make or find the Meta streams, open and replay them, open what their log meta names,
recover). When to open and when to try again is `partition_manager`. Streams of one batch are opened by one operation, so that a start
with thousands of partitions costs few round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ponor_partition import meta_entry
from ponor_partition.log_meta import LogMeta
from ponor_partition.meta_entry import MetaKey, MetaValues
from ponor_partition.segment import CLEANED, DATA, TIME, StreamName
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.errors import S3StreamError
from s3stream.turns import Steps

from ponor_broker.partitions.durable_state import RECOVER_BYTES, DurableState
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.meta_stream import REPLAY_BYTES, MetaStream
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_log import PartitionLog, RollRules
from ponor_broker.partitions.stream_port import PartitionStream, StreamSource
from ponor_broker.partitions.topic_config import TopicConfig
from ponor_broker.partitions.topics import Topics, decode_stream_id, encode_stream_id, meta_stream_key
from ponor_broker.partitions.turn_share import TurnShare

_T = TypeVar("_T")
PutKeys: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], Awaitable[Sequence[bytes]]]
"""Put each value whose key has none; the answer are the values that the keys have now."""
META: Final = "meta"
PARTITIONS_PER_TURN: Final = 32
"""After so many others get the loop: a topic of a thousand partitions is made while others are read and written."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A partition to open, the epoch to open it at, and its topic's own settings."""

    identity: PartitionId
    leader_epoch: int
    configs: Mapping[str, str]


class _FirstStreams(NamedTuple):
    """Where a partition begins: its Meta stream, and its Data stream if that was made a moment ago."""

    meta_id: StreamId
    data_id: StreamId | None


class PartitionOpener:
    """Opens batches of partitions. An attempt that failed half-way is repeated safely: a stream that is open here at the epoch asked for
    is simply given again.
    """

    def __init__(
        self,
        streams: StreamSource,
        topics: Topics,
        put_keys: PutKeys,
        clock: Clock,
        *,
        config: TopicConfig,
        producers_max: int,
        attend: Callable[[Partition], None],
    ) -> None:
        self._streams = streams
        self._topics = topics
        self._put_keys = put_keys
        self._clock = clock
        self._config = config
        self._producers_max = producers_max
        self._attend = attend

    async def open(self, requests: Sequence[OpenRequest]) -> list[Partition]:
        """Open partitions, all or none (the controller opens streams so).

        Raises:
            s3stream.errors.S3StreamError: a stream cannot be opened or read.
            ponor_partition.errors.PartitionCorruptError: what the Meta stream says makes no sense.
        """
        first_streams = await self._first_streams(requests)
        opened_before = [self._topics.opened_streams(request.identity.key) for request in requests]
        metas = await self._open_first_streams(requests, first_streams, opened_before)
        share = TurnShare(self._clock)
        values = await self._replay(metas, share)
        log_metas = [await share.run(_log_meta(value)) for value in values]
        await self._begin_logs(requests, metas, log_metas, first_streams)
        opened = await self._open_log_streams(requests, log_metas)
        await self._close_strangers(requests, metas, log_metas, opened_before)
        partitions: list[Partition] = []
        for parts in zip(requests, metas, values, log_metas, opened, strict=True):
            partitions.append(await share.run(self._build(*parts)))
            await share.step()
        await self._recover(partitions)
        for partition in partitions:
            self._serve(partition)
        return partitions

    async def add_time_streams(self, partitions: Sequence[Partition]) -> None:
        """Make and open the Time stream of partitions that need one by now."""
        tags = [_tags(partition.identity, TIME) for partition in partitions]
        stream_ids = await self._streams.create_streams(tags)
        wanted = [
            (stream_id, partition.leader_epoch)
            for stream_id, partition in zip(stream_ids, partitions, strict=True)
        ]
        streams = await self._open_streams(wanted)
        await _add_streams(
            [(partition, TIME, stream) for partition, stream in zip(partitions, streams, strict=True)]
        )

    async def add_cleaned_streams(self, partition: Partition) -> None:
        """Make and open the `.cleaned` twins of a partition's streams, as far as it has none: before it is cleaned for the first time.

        Raises:
            s3stream.errors.S3StreamError: to be tried again; what was made for nothing goes with the topic.
        """
        names = [name + CLEANED for name in (DATA, TIME) if name + CLEANED not in partition.log.streams]
        if not names:
            return
        stream_ids = await self._streams.create_streams([_tags(partition.identity, name) for name in names])
        opened = await self._open_streams([(one, partition.leader_epoch) for one in stream_ids])
        await _add_streams([(partition, name, stream) for name, stream in zip(names, opened, strict=True)])

    async def _first_streams(self, requests: Sequence[OpenRequest]) -> list[_FirstStreams]:
        """The Meta stream of each; for a partition that never had one it is made and put under its key, and its Data stream beside it.

        Where an earlier attempt, or another broker, put a Meta stream under the key meanwhile, that one counts; what was made for nothing goes
        with the topic.
        """
        known = [self._topics.meta_stream_id(r.identity.topic_id, r.identity.index) for r in requests]
        new = [r.identity for r, meta_id in zip(requests, known, strict=True) if meta_id is None]
        made = iter(await self._make_first_streams(new) if new else [])
        return [next(made) if meta_id is None else _FirstStreams(meta_id, None) for meta_id in known]

    async def _make_first_streams(self, new: Sequence[PartitionId]) -> list[_FirstStreams]:
        created = await self._streams.create_streams(
            [_tags(identity, kind) for kind in (META, DATA) for identity in new]
        )
        meta_ids, data_ids = created[: len(new)], created[len(new) :]
        keys = [meta_stream_key(identity.topic_id, identity.index) for identity in new]
        puts = list(zip(keys, map(encode_stream_id, meta_ids), strict=True))
        held = map(decode_stream_id, await self._put_keys(puts))
        return [
            _FirstStreams(held_id, data_id if held_id == meta_id else None)
            for held_id, meta_id, data_id in zip(held, meta_ids, data_ids, strict=True)
        ]

    async def _open_first_streams(
        self,
        requests: Sequence[OpenRequest],
        streams: Sequence[_FirstStreams],
        opened_before: Sequence[Sequence[StreamId]],
    ) -> list[MetaStream]:
        """One operation for Meta streams, new Data streams, and all that the image knows of partitions that were open before: what their log
        metas will name is open by then. Returns the Meta streams.
        """
        epochs = [request.leader_epoch for request in requests]
        wanted = [(first.meta_id, epoch) for first, epoch in zip(streams, epochs, strict=True)]
        wanted += [
            (first.data_id, epoch)
            for first, epoch in zip(streams, epochs, strict=True)
            if first.data_id is not None
        ]
        wanted += [
            (stream_id, request.leader_epoch)
            for request, first, before in zip(requests, streams, opened_before, strict=True)
            for stream_id in before
            if stream_id != first.meta_id
        ]
        return [MetaStream(stream) for stream in (await self._open_streams(wanted))[: len(requests)]]

    async def _replay(self, metas: Sequence[MetaStream], share: TurnShare) -> list[MetaValues]:
        """Nearly all of them have been read to their ends by then; only the others wait."""
        starts = [(meta.stream.stream_id, meta.stream.start_offset) for meta in metas]
        first = await self._streams.read_together(starts, REPLAY_BYTES)
        values: list[MetaValues] = []
        for some in _turns(list(zip(metas, first, strict=True))):
            waiting = [at for at, (meta, records) in enumerate(some) if not meta.is_whole(records)]
            rest = iter(await asyncio.gather(*(some[at][0].replay(some[at][1]) for at in waiting)))
            for at, (meta, records) in enumerate(some):
                values.append(next(rest) if at in waiting else await meta.replay(records))
                await share.step()
        return values

    async def _begin_logs(
        self,
        requests: Sequence[OpenRequest],
        metas: Sequence[MetaStream],
        log_metas: Sequence[LogMeta],
        streams: Sequence[_FirstStreams],
    ) -> None:
        """First open of a partition: log meta with its Data stream and one segment."""
        new = [at for at, log_meta in enumerate(log_metas) if not log_meta.segments]
        lacking = [
            at for at in new if streams[at].data_id is None
        ]  # an earlier attempt came as far as the key
        tags = [_tags(requests[at].identity, DATA) for at in lacking]
        made = dict(zip(lacking, await self._streams.create_streams(tags), strict=True))
        durable = []
        for at in new:
            data_id = streams[at].data_id or made[at]
            log_meta = log_metas[at]
            log_meta.apply_change(LogMeta.stream_change(DATA, data_id))
            log_meta.apply_change(LogMeta.roll_change(0, {DATA: 0}, self._clock.wall_ms()))
            durable.append(metas[at].put(meta_entry.LOG, log_meta.snapshot()))
        await asyncio.gather(*durable)  # an attempt that fails after this finds the stream again

    async def _open_log_streams(
        self, requests: Sequence[OpenRequest], log_metas: Sequence[LogMeta]
    ) -> list[dict[str, PartitionStream]]:
        wanted = [
            (stream_id, request.leader_epoch)
            for request, log_meta in zip(requests, log_metas, strict=True)
            for stream_id in log_meta.streams.values()
        ]
        opened = iter(await self._open_streams(wanted))
        return [{name: next(opened) for name in log_meta.streams} for log_meta in log_metas]

    async def _close_strangers(
        self,
        requests: Sequence[OpenRequest],
        metas: Sequence[MetaStream],
        log_metas: Sequence[LogMeta],
        opened_before: Sequence[Sequence[StreamId]],
    ) -> None:
        """Streams that somebody opened for a partition and could not write into its log meta any more: nearly always none."""
        for request, meta, log_meta, before in zip(requests, metas, log_metas, opened_before, strict=True):
            known = {meta.stream.stream_id, *log_meta.streams.values()}
            strangers = [(one, request.leader_epoch) for one in before if one not in known]
            for stream in await self._open_streams(strangers) if strangers else ():
                await stream.close()

    async def _open_streams(self, wanted: Sequence[tuple[StreamId, int]]) -> Sequence[PartitionStream]:
        return await self._streams.open_streams(
            [(stream_id, StreamEpoch(epoch)) for stream_id, epoch in wanted]
        )

    async def _recover(self, partitions: Sequence[Partition]) -> None:
        """What lies behind the checkpoints is read together; most partitions have nothing there, and wait for nothing."""
        behind = [place for partition in partitions if (place := partition.recovers_from) is not None]
        await self._streams.read_together(behind, RECOVER_BYTES)  # they find it in the block cache
        for some in _turns(partitions):
            reading = [partition.recover() for partition in some if partition.recovers_from is not None]
            for partition in some:
                if partition.recovers_from is None:
                    await partition.recover()
            await asyncio.gather(*reading)

    def _build(
        self,
        request: OpenRequest,
        meta: MetaStream,
        values: MetaValues,
        log_meta: LogMeta,
        streams: dict[str, PartitionStream],
    ) -> Steps[Partition]:
        config = self._config.resolve(request.configs)
        log = PartitionLog(meta, log_meta, streams, RollRules(config.segment_bytes, config.roll_ms))
        state = DurableState(meta, log, producers_max=self._producers_max)
        yield from state.restoring(values)
        return Partition(
            request.identity, request.leader_epoch, log, meta, state, config=config, clock=self._clock
        )

    def _serve(self, partition: Partition) -> None:
        data = partition.log.streams[partition.log.log_meta.active.data_stream]
        self._streams.on_upload(data.stream_id, partition.before_upload)
        partition.attend(self._attend)


async def _add_streams(opened: Sequence[tuple[Partition, StreamName, PartitionStream]]) -> None:
    """Give partitions streams that were opened for them. What a partition does not take is closed: an open stream that nobody knows
    would keep the partition from ever being led elsewhere.

    Raises:
        s3stream.errors.S3StreamError: the first refusal, after all of them were dealt with.
    """
    refusal: S3StreamError | None = None
    for partition, name, stream in opened:
        try:
            if partition.is_writable:
                partition.log.add_stream(name, stream)
                continue
        except S3StreamError as error:
            refusal = refusal or error
        await stream.close()
    if refusal is not None:
        raise refusal


def _log_meta(values: MetaValues) -> Steps[LogMeta]:
    log_meta = LogMeta()
    value = values.get(LogMeta.key)
    if value is not None:
        yield from log_meta.replaying(value)
    return log_meta


def _turns(things: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (things[at : at + PARTITIONS_PER_TURN] for at in range(0, len(things), PARTITIONS_PER_TURN))


def _tags(identity: PartitionId, kind: MetaKey | str) -> dict[str, str]:
    """Labels by which the controller finds the streams of a deleted topic."""
    return {"topic": identity.topic_id.hex(), "partition": str(identity.index), "kind": kind}
