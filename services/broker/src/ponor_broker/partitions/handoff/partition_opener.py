"""Opening partitions: from a leader epoch in the image to a partition that serves.

Streams of many partitions are created, opened and read together, so that a start with thousands of partitions costs few round trips. What one
partition needs for itself, its reads of the store and its own values, concerns nobody but that partition: a slow or a bad one neither holds up nor
fails the others. When to open and when to try again is `arrivals`.
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
from ponor_broker.partitions.state.refused_sequences import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.topics.topics import Topics, decode_stream_id, encode_stream_id, meta_stream_key

PutKeys: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], Awaitable[Sequence[bytes]]]
"""Put each value whose key has none; the answer are the values that the keys have now."""
OnOpened: TypeAlias = Callable[[Sequence[tuple[Opening, Partition]]], None]
"""Called with partitions that serve from now on, as soon as they do."""
META: Final = "meta"


class Refusal(NamedTuple):
    """Partitions that were not opened, and why. More than one: an operation for all of them was refused, and it is not known for whose sake."""

    openings: Sequence[Opening]
    error: Exception


class _FirstStreams(NamedTuple):
    """Where a partition begins: its Meta stream, and its Data stream if that was made a moment ago."""

    meta_id: StreamId
    data_id: StreamId | None


@dataclass(slots=True)
class _Arriving:
    """A partition in the middle of an attempt: what was opened and read so far."""

    opening: Opening
    first: _FirstStreams
    meta: MetaStream
    records: Sequence[StreamRecord] = ()
    values: MetaValues = field(default_factory=dict)
    log_meta: LogMeta = field(default_factory=LogMeta)
    streams: dict[str, PartitionStream] = field(default_factory=dict)


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
        """Open partitions; those that could not be opened, and why. What was opened for them stays open here, and is named in their openings.

        Openings that were interrupted are told so themselves, at once.
        """
        try:
            first = await self._first_streams(openings)
            metas = await self._open_first_streams(openings, first)
        except S3StreamError as error:
            return [Refusal(openings, error)]
        arriving = [_Arriving(*parts) for parts in zip(openings, first, metas, strict=True)]
        starts = [(meta.stream.stream_id, meta.stream.start_offset) for meta in metas]
        for one, records in zip(
            arriving, await self._read_together(openings, starts, REPLAY_BYTES), strict=True
        ):
            one.records = records
        # Nearly all Meta streams have been read to their ends by now. Each of the others goes on alone.
        ready = [one for one in arriving if one.meta.is_whole(one.records)]
        slow = [one for one in arriving if not one.meta.is_whole(one.records)]
        groups = [ready, *([one] for one in slow)]
        refused = await asyncio.gather(*(self._finish(group, on_opened) for group in groups if group))
        return [refusal for some in refused for refusal in some]

    async def _first_streams(self, openings: Sequence[Opening]) -> list[_FirstStreams]:
        """The Meta stream of each; for a partition that never had one it is made and put under its key, and its Data stream beside it.

        Where an earlier attempt, or another broker, put a Meta stream under the key meanwhile, that one counts. What was made for nothing is
        deleted by the leader once the partition serves (`owned_streams`), or goes with the topic.
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
        """One operation for Meta streams, new Data streams, and all that the image knows of partitions that were open before: what their log
        metas will name is open by then. Returns the Meta streams.
        """
        wanted = [(opening, one.meta_id) for opening, one in zip(openings, first, strict=True)]
        for opening, one in zip(openings, first, strict=True):
            before = self._topics.streams_to_open(opening.key, opening.request.leader_epoch)
            wanted += [(opening, stream_id) for stream_id in before if stream_id != one.meta_id]
            if one.data_id is not None:
                wanted.append((opening, one.data_id))
        return [MetaStream(stream) for stream in (await self._open_streams(wanted))[: len(openings)]]

    async def _finish(self, group: Sequence[_Arriving], on_opened: OnOpened) -> list[Refusal]:
        """Everything from the replay of the Meta streams on, for partitions that wait for one another's operations but for nobody's reads."""
        refusals: list[Refusal] = []
        share = TurnShare(self._clock)
        replayed: list[_Arriving] = []
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

    async def _replay(self, one: _Arriving, share: TurnShare) -> None:
        replay = one.meta.replay(one.records)
        # What was read to its end already waits for nothing, and costs no task.
        one.values = await (replay if one.meta.is_whole(one.records) else one.opening.read(replay))
        one.log_meta = await share.run(_log_meta(one.values))
        await share.step()

    async def _begin_logs(self, arriving: Sequence[_Arriving]) -> None:
        """First open of a partition: log meta with its Data stream and one segment."""
        new = [one for one in arriving if not one.log_meta.segments]
        lacking = [
            one for one in new if one.first.data_id is None
        ]  # an earlier attempt came as far as the key
        tags = [stream_tags(one.opening.request.identity, DATA) for one in lacking]
        made = dict(zip(map(id, lacking), await self._streams.create_streams(tags), strict=True))
        durable = []
        for one in new:
            data_id = one.first.data_id or made[id(one)]
            one.log_meta.apply_change(LogMeta.stream_change(DATA, data_id))
            one.log_meta.apply_change(LogMeta.roll_change(0, {DATA: 0}, self._clock.wall_ms()))
            durable.append(one.meta.put(meta_entry.LOG, one.log_meta.snapshot()))
        await asyncio.gather(*durable)  # an attempt that fails after this finds the stream again

    async def _open_log_streams(self, arriving: Sequence[_Arriving]) -> None:
        wanted = [(one.opening, stream_id) for one in arriving for stream_id in one.log_meta.streams.values()]
        opened = iter(await self._open_streams(wanted))
        for one in arriving:
            one.streams = {name: next(opened) for name in one.log_meta.streams}

    async def _open_streams(self, wanted: Sequence[tuple[Opening, StreamId]]) -> Sequence[PartitionStream]:
        for opening, stream_id in wanted:
            opening.stream_ids[stream_id] = None  # before it is asked for: whatever happens, somebody owns it
        return await self._streams.open_streams(
            [(stream_id, StreamEpoch(opening.request.leader_epoch)) for opening, stream_id in wanted]
        )

    async def _read_together(
        self, openings: Sequence[Opening], parts: Sequence[tuple[StreamId, int]], max_bytes: int
    ) -> list[list[StreamRecord]]:
        """A shortcut: where it is interrupted, each partition reads for itself, or finds that it is not to be opened now."""
        reading = asyncio.ensure_future(self._streams.read_together(parts, max_bytes))
        for opening in openings:
            opening.shares(reading)
        try:
            await asyncio.wait([reading])
        finally:
            reading.cancel()  # no effect on one that is done
        return [[] for _ in parts] if reading.cancelled() else reading.result()

    async def _recover(
        self, built: Sequence[tuple[Opening, Partition]], on_opened: OnOpened
    ) -> list[Refusal]:
        """Serve those that have nothing behind their checkpoints, which most are, and each of the others when it has read that."""
        behind = [(one, place) for one in built if (place := one[1].recovers_from) is not None]
        at_once = [one for one in built if one[1].recovers_from is None]
        for _, partition in at_once:
            await partition.recover()
        refusals = self._serve(at_once, on_opened)
        if behind:
            openings = [opening for (opening, _), _ in behind]
            await self._read_together(openings, [place for _, place in behind], RECOVER_BYTES)
            # What was read is in the block cache now.
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
            except S3StreamError as error:  # the broker stops
                refusals.append(Refusal([opening], error))
                continue
            partition.attend(self._attend)
            serving.append((opening, partition))
        if serving:
            on_opened(serving)
        return refusals

    def _build(self, one: _Arriving) -> Steps[Partition]:
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
        )


def _log_meta(values: MetaValues) -> Steps[LogMeta]:
    log_meta = LogMeta()
    value = values.get(LogMeta.key)
    if value is not None:
        yield from log_meta.replaying(value)
    return log_meta
