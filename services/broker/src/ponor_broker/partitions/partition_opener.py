"""Opening partitions: from a leader epoch in the image to a partition that serves.

What lives here: the steps of one batch of opens (make or find the Meta streams, open and replay them, open what their log meta names,
recover). When to open and when to try again is `partition_manager`. Streams of one batch are opened by one operation, so that a start
with thousands of partitions costs few round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamEpoch, StreamId

from ponor_broker.partitions import meta_entry
from ponor_broker.partitions.durable_state import DurableState
from ponor_broker.partitions.errors import PartitionCorruptError
from ponor_broker.partitions.log_meta import DATA, TIME, LogMeta
from ponor_broker.partitions.meta_entry import MetaKey, MetaValues
from ponor_broker.partitions.meta_stream import MetaStream
from ponor_broker.partitions.partition import Partition, PartitionId
from ponor_broker.partitions.partition_log import PartitionLog, RollRules
from ponor_broker.partitions.stream_port import PartitionStream, StreamSource
from ponor_broker.partitions.topic_config import TopicConfig
from ponor_broker.partitions.topics import Topics, decode_stream_id, encode_stream_id, meta_stream_key

PutKey: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]
"""Put a value if the key has none; the answer is the value that the key has now."""
META: Final = "meta"


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A partition to open, the epoch to open it at, and its topic's own settings."""

    identity: PartitionId
    leader_epoch: int
    configs: Mapping[str, str]


class PartitionOpener:
    """Opens batches of partitions. An attempt that failed half-way is repeated safely: a stream that is open here at the epoch asked for
    is simply given again.
    """

    def __init__(
        self,
        streams: StreamSource,
        topics: Topics,
        put_key: PutKey,
        clock: Clock,
        *,
        config: TopicConfig,
        producers_max: int,
        attend: Callable[[Partition], None],
    ) -> None:
        self._streams = streams
        self._topics = topics
        self._put_key = put_key
        self._clock = clock
        self._config = config
        self._producers_max = producers_max
        self._attend = attend

    async def open(self, requests: Sequence[OpenRequest]) -> list[Partition]:
        """Open partitions, all or none (the controller opens streams so).

        Raises:
            s3stream.errors.S3StreamError: a stream cannot be opened or read.
            PartitionCorruptError: what the Meta stream says makes no sense.
        """
        meta_ids = await self._meta_stream_ids(requests)
        metas = await self._open_streams(
            [(meta_id, request.leader_epoch) for meta_id, request in zip(meta_ids, requests, strict=True)]
        )
        meta_streams = [MetaStream(stream) for stream in metas]
        values = await asyncio.gather(*(meta.replay() for meta in meta_streams))
        log_metas = [_log_meta(value) for value in values]
        await self._create_data_streams(requests, meta_streams, log_metas)
        opened = await self._open_log_streams(requests, log_metas)
        partitions = [
            self._build(*parts)
            for parts in zip(requests, meta_streams, values, log_metas, opened, strict=True)
        ]
        await asyncio.gather(*(partition.recover() for partition in partitions))
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
        for partition, stream in zip(partitions, streams, strict=True):
            if partition.is_serving:
                partition.log.add_time_stream(stream)
            else:
                await stream.close()

    async def _meta_stream_ids(self, requests: Sequence[OpenRequest]) -> list[StreamId]:
        known = [self._topics.meta_stream_id(r.identity.topic_id, r.identity.index) for r in requests]
        new = [request for request, meta_id in zip(requests, known, strict=True) if meta_id is None]
        if not new:
            return [meta_id for meta_id in known if meta_id is not None]
        created = await self._streams.create_streams([_tags(request.identity, META) for request in new])
        held = iter(
            await asyncio.gather(
                *(
                    self._put_key(
                        meta_stream_key(request.identity.topic_id, request.identity.index),
                        encode_stream_id(stream_id),
                    )
                    for request, stream_id in zip(new, created, strict=True)
                )
            )
        )
        return [meta_id if meta_id is not None else decode_stream_id(next(held)) for meta_id in known]

    async def _create_data_streams(
        self, requests: Sequence[OpenRequest], metas: Sequence[MetaStream], log_metas: Sequence[LogMeta]
    ) -> None:
        """First open of a partition: its Data stream, and log meta with one segment."""
        new = [at for at, log_meta in enumerate(log_metas) if not log_meta.segments]
        if not new:
            return
        stream_ids = await self._streams.create_streams([_tags(requests[at].identity, DATA) for at in new])
        durable = []
        for at, stream_id in zip(new, stream_ids, strict=True):
            log_meta = log_metas[at]
            log_meta.apply_change(LogMeta.stream_change(DATA, stream_id))
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

    async def _open_streams(self, wanted: Sequence[tuple[StreamId, int]]) -> Sequence[PartitionStream]:
        return await self._streams.open_streams(
            [(stream_id, StreamEpoch(epoch)) for stream_id, epoch in wanted]
        )

    def _build(
        self,
        request: OpenRequest,
        meta: MetaStream,
        values: MetaValues,
        log_meta: LogMeta,
        streams: dict[str, PartitionStream],
    ) -> Partition:
        config = self._config.resolve(request.configs)
        log = PartitionLog(meta, log_meta, streams, RollRules(config.segment_bytes, config.segment_ms))
        state = DurableState(meta, log, producers_max=self._producers_max)
        state.restore(values)
        return Partition(
            request.identity, request.leader_epoch, log, meta, state, config=config, clock=self._clock
        )

    def _serve(self, partition: Partition) -> None:
        data = partition.log.streams[partition.log.log_meta.active.data_stream]
        self._streams.on_upload(data.stream_id, partition.before_upload)
        partition.attend(self._attend)


def _log_meta(values: MetaValues) -> LogMeta:
    log_meta = LogMeta()
    value = values.get(LogMeta.key)
    if value is not None:
        if value.whole is None:
            raise PartitionCorruptError("LOG: changes without the value they change")
        log_meta.restore(value.whole)
        for change in value.changes:
            log_meta.apply_change(change)
    return log_meta


def _tags(identity: PartitionId, kind: MetaKey | str) -> dict[str, str]:
    """Labels by which the controller finds the streams of a deleted topic."""
    return {"topic": identity.topic_id.hex(), "partition": str(identity.index), "kind": kind}
