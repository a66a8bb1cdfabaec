"""Opening of partitions: from a leader epoch in the image to a serving partition.

Streams of many partitions are created, opened and read together, so that a start with thousands of partitions
needs few round trips. Reads and state of a single partition affect only that partition: a slow or damaged
partition neither delays the others nor makes them fail. `handoff_target` decides when to open and when to
retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.log_meta import LogMeta
from ponor_partition.meta_entry import MetaValues
from ponor_partition.segment import DATA
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.turns import Steps, TurnShare
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.handoff.opening import Opening, OpeningInterruptedError
from ponor_broker.partitions.handoff.owned_streams import stream_tags
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.log.meta_stream import REPLAY_BYTES, MetaStream
from ponor_broker.partitions.log.partition_log import PartitionLog, RollRules
from ponor_broker.partitions.log.stream_port import PartitionStream, StreamSource
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.durable_state import RECOVER_BYTES, DurableState
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.topics.topics import Topics, decode_stream_id, encode_stream_id, meta_stream_key

PutKeys: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], Awaitable[Sequence[bytes]]]
"""Puts each value whose key has no value yet; returns the values that the keys have now."""
OnOpened: TypeAlias = Callable[[Sequence[tuple[Opening, Partition]]], None]
"""Called with partitions as soon as they serve."""
META: Final = "meta"


class Refusal(NamedTuple):
    """Partitions that were not opened, and the error. If there are several, an operation for all of them was
    refused, and any of them may be the cause.
    """

    openings: Sequence[Opening]
    error: Exception


class _FirstStreams(NamedTuple):
    """The Meta stream of a partition, and its Data stream if it was created just now."""

    meta_id: StreamId
    data_id: StreamId | None


@dataclass(slots=True)
class _OpeningPartition:
    """A partition within an attempt: what was opened and read so far."""

    opening: Opening
    first: _FirstStreams
    meta: MetaStream
    records: Sequence[StreamRecord] = ()
    values: MetaValues = field(default_factory=dict)
    log_meta: LogMeta = field(default_factory=LogMeta)
    streams: dict[str, PartitionStream] = field(default_factory=dict)


class PartitionOpener:
    """Opens batches of partitions. A failed attempt can be repeated: a stream that is open here at
    the requested epoch is returned again.
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
        refused: RefusedSequences,
    ) -> None:
        self._streams = streams
        self._topics = topics
        self._put_keys = put_keys
        self._clock = clock
        self._config = config
        self._producers_max = producers_max
        self._attend = attend
        self._refused = refused

    async def open(self, openings: Sequence[Opening], on_opened: OnOpened) -> list[Refusal]:
        """Open partitions; return those that could not be opened. Their open streams stay open
        here, and are listed in their openings.

        Interrupted openings are notified directly.
        """
        try:
            first = await self._first_streams(openings)
            metas = await self._open_first_streams(openings, first)
        except S3StreamError as error:
            return [Refusal(openings, error)]
        attempted = [_OpeningPartition(*parts) for parts in zip(openings, first, metas, strict=True)]
        starts = [(meta.stream.stream_id, meta.stream.start_offset) for meta in metas]
        for one, records in zip(
            attempted, await self._read_together(openings, starts, REPLAY_BYTES), strict=True
        ):
            one.records = records
        # Partitions whose Meta stream was read to its end (usually all) continue together, all others alone.
        ready = [one for one in attempted if one.meta.is_whole(one.records)]
        slow = [one for one in attempted if not one.meta.is_whole(one.records)]
        groups = [ready, *([one] for one in slow)]
        refused = await asyncio.gather(*(self._finish(group, on_opened) for group in groups if group))
        return [refusal for some in refused for refusal in some]

    async def _first_streams(self, openings: Sequence[Opening]) -> list[_FirstStreams]:
        """Return the Meta stream of each partition; for a new partition create it, put it under its
        key, and create the Data stream too.

        If another broker or an earlier attempt has put a Meta stream under the key, that stream
        is used. Unneeded streams are deleted by the leader when the partition serves
        (`owned_streams`), or with the topic.
        """
        identities = [opening.request.identity for opening in openings]
        known = [self._topics.meta_stream_id(one.topic_id, one.index) for one in identities]
        new = [one for one, meta_id in zip(identities, known, strict=True) if meta_id is None]
        made = iter(await self._make_first_streams(new) if new else [])
        return [next(made) if meta_id is None else _FirstStreams(meta_id, None) for meta_id in known]

    async def _make_first_streams(self, new: Sequence[PartitionId]) -> list[_FirstStreams]:
        created = await self._streams.create_streams(
            [stream_tags(identity, kind) for kind in (META, DATA) for identity in new]
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
        self, openings: Sequence[Opening], first: Sequence[_FirstStreams]
    ) -> list[MetaStream]:
        """Open in one operation the Meta streams, the new Data streams, and all other streams that the image
        shows for partitions that were open earlier. Return the Meta streams.
        """
        wanted = [(opening, one.meta_id) for opening, one in zip(openings, first, strict=True)]
        for opening, one in zip(openings, first, strict=True):
            before = self._topics.streams_to_open(opening.key, opening.request.leader_epoch)
            wanted += [(opening, stream_id) for stream_id in before if stream_id != one.meta_id]
            if one.data_id is not None:
                wanted.append((opening, one.data_id))
        return [MetaStream(stream) for stream in (await self._open_streams(wanted))[: len(openings)]]

    async def _finish(self, group: Sequence[_OpeningPartition], on_opened: OnOpened) -> list[Refusal]:
        """Replay the Meta streams, and complete the opening of partitions that share operations but not
        reads.
        """
        refusals: list[Refusal] = []
        share = TurnShare(self._clock)
        replayed: list[_OpeningPartition] = []
        for one in group:
            try:
                await self._replay(one, share)
            except OpeningInterruptedError:
                one.opening.leave_attempt()
            except (S3StreamError, PartitionCorruptError) as error:
                refusals.append(Refusal([one.opening], error))
            else:
                replayed.append(one)
        try:
            await self._begin_logs(replayed)
            await self._open_log_streams(replayed)
        except S3StreamError as error:
            return [*refusals, Refusal([one.opening for one in replayed], error)]
        built: list[tuple[Opening, Partition]] = []
        for one in replayed:
            try:
                built.append((one.opening, await share.run(self._build(one))))
            except PartitionCorruptError as error:
                refusals.append(Refusal([one.opening], error))
            await share.step()
        return [*refusals, *await self._recover(built, on_opened)]

    async def _replay(self, one: _OpeningPartition, share: TurnShare) -> None:
        replay = one.meta.replay(one.records)
        # A stream that was read to its end needs no read, and so no task.
        one.values = await (replay if one.meta.is_whole(one.records) else one.opening.read(replay))
        one.log_meta = await share.run(_log_meta(one.values))
        await share.step()

    async def _begin_logs(self, attempted: Sequence[_OpeningPartition]) -> None:
        """Create the log meta of new partitions, with the Data stream and one segment."""
        new = [one for one in attempted if not one.log_meta.segments]
        lacking = [
            one for one in new if one.first.data_id is None
        ]  # an earlier attempt failed after it had put the key
        tags = [stream_tags(one.opening.request.identity, DATA) for one in lacking]
        made = dict(zip(map(id, lacking), await self._streams.create_streams(tags), strict=True))
        durable = []
        for one in new:
            data_id = one.first.data_id or made[id(one)]
            one.log_meta.apply_change(LogMeta.stream_change(DATA, data_id))
            one.log_meta.apply_change(LogMeta.roll_change(0, {DATA: 0}, self._clock.wall_ms()))
            durable.append(one.meta.put(meta_entry.LOG, one.log_meta.snapshot()))
        await asyncio.gather(*durable)  # from now on, a later attempt finds the stream

    async def _open_log_streams(self, attempted: Sequence[_OpeningPartition]) -> None:
        wanted = [
            (one.opening, stream_id) for one in attempted for stream_id in one.log_meta.streams.values()
        ]
        opened = iter(await self._open_streams(wanted))
        for one in attempted:
            one.streams = {name: next(opened) for name in one.log_meta.streams}

    async def _open_streams(self, wanted: Sequence[tuple[Opening, StreamId]]) -> Sequence[PartitionStream]:
        for opening, stream_id in wanted:
            # before the request, so that every opened stream has an owner
            opening.stream_ids[stream_id] = None
        return await self._streams.open_streams(
            [(stream_id, StreamEpoch(opening.request.leader_epoch)) for opening, stream_id in wanted]
        )

    async def _read_together(
        self, openings: Sequence[Opening], parts: Sequence[tuple[StreamId, int]], max_bytes: int
    ) -> list[list[StreamRecord]]:
        """Read several streams at once, as an optimization: after an interruption each partition
        reads alone, or finds that it must not be opened.
        """
        reading = asyncio.ensure_future(self._streams.read_together(parts, max_bytes))
        for opening in openings:
            opening.shares(reading)
        try:
            await asyncio.wait([reading])
        finally:
            reading.cancel()  # no effect if it is done
        return [[] for _ in parts] if reading.cancelled() else reading.result()

    async def _recover(
        self, built: Sequence[tuple[Opening, Partition]], on_opened: OnOpened
    ) -> list[Refusal]:
        """Serve immediately the partitions whose checkpoint is at the end of the log (the usual case), and
        each other partition after its recovery.
        """
        behind = [(one, place) for one in built if (place := one[1].recovers_from) is not None]
        at_once = [one for one in built if one[1].recovers_from is None]
        for _, partition in at_once:
            await partition.recover()
        refusals = self._serve(at_once, on_opened)
        if behind:
            openings = [opening for (opening, _), _ in behind]
            await self._read_together(openings, [place for _, place in behind], RECOVER_BYTES)
            # The data is in the block cache now.
            rest = await asyncio.gather(*(self._recover_one(*one, on_opened) for one, _ in behind))
            refusals += [refusal for some in rest for refusal in some]
        return refusals

    async def _recover_one(
        self, opening: Opening, partition: Partition, on_opened: OnOpened
    ) -> list[Refusal]:
        try:
            await opening.read(partition.recover())
        except OpeningInterruptedError:
            opening.leave_attempt()
            return []
        except (S3StreamError, PartitionCorruptError, PartitionError) as error:
            return [Refusal([opening], error)]
        return self._serve([(opening, partition)], on_opened)

    def _serve(self, recovered: Sequence[tuple[Opening, Partition]], on_opened: OnOpened) -> list[Refusal]:
        refusals: list[Refusal] = []
        serving: list[tuple[Opening, Partition]] = []
        for opening, partition in recovered:
            data = partition.log.streams[partition.log.log_meta.active.data_stream]
            try:
                self._streams.on_upload(data.stream_id, partition.before_upload)
            except S3StreamError as error:  # the broker is stopping
                refusals.append(Refusal([opening], error))
                continue
            self._attend(partition)
            serving.append((opening, partition))
        if serving:
            on_opened(serving)
        return refusals

    def _build(self, one: _OpeningPartition) -> Steps[Partition]:
        request = one.opening.request
        config = self._config.resolve(request.configs)
        log = PartitionLog(
            one.meta, one.log_meta, one.streams, RollRules(config.segment_bytes, config.roll_ms)
        )
        state = DurableState(one.meta, log, producers_max=self._producers_max)
        yield from state.restoring(one.values)
        return Partition(
            request.identity,
            request.leader_epoch,
            log,
            one.meta,
            state,
            config=config,
            clock=self._clock,
            refused=self._refused,
            attend=self._attend,
        )


def _log_meta(values: MetaValues) -> Steps[LogMeta]:
    log_meta = LogMeta()
    value = values.get(LogMeta.key)
    if value is not None:
        yield from log_meta.replaying(value)
    return log_meta
