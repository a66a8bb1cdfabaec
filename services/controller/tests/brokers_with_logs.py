"""Model brokers with write-ahead logs in a store, as the controllers see them.

A slot of a log is an acknowledged range. The store refuses a slot after the log is fenced, as a
create-only put does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION, STREAMS_OPEN_AT, StreamRow
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY, PartitionRow
from ponor_metadata.nouns.wals import WALS, WALS_RECOVERED_BY, WalRow
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeEpoch, NodeId, StreamId, compose_node_id
from ponor_simulation.process import SimProcess, wait_until

from services.controller.tests.ledger import UploadRange, upload_body
from services.controller.tests.quorum_world import ADDRESSES, ORDINAL, Clients, QuorumWorld

LogKey: TypeAlias = tuple[int, int]
"""Node and epoch."""
PAUSE_S = 0.05
SLOTS_KEPT = 6
"""A broker uploads when this many slots are not trimmed."""


@dataclass
class LogStore:
    """The slots of all logs, and the fenced logs. Survives all processes."""

    slots: dict[LogKey, list[UploadRange]] = field(default_factory=dict)
    fenced: set[LogKey] = field(default_factory=set)

    def put(self, log: LogKey, slot: UploadRange) -> bool:
        """Return whether the slot was stored, and so acknowledged."""
        if log in self.fenced:
            return False
        self.slots.setdefault(log, []).append(slot)
        return True

    def acknowledged(self) -> dict[int, int]:
        """By stream, one past the last acknowledged offset."""
        ends: dict[int, int] = {}
        for slots in self.slots.values():
            for stream_id, _, _, end in slots:
                ends[stream_id] = max(end, ends.get(stream_id, 0))
        return ends


class Broker:
    """One broker in all its lives. `stalls`: it neither starts nor finishes recoveries."""

    def __init__(self, world: QuorumWorld, store: LogStore, number: int) -> None:
        self.number = number
        self.node_id: NodeId = compose_node_id(ORDINAL, number)
        self.stalls = False
        self.closed: list[LogKey] = []
        """Logs of other brokers, or of its own earlier lives, that it recovered."""
        self._store = store
        self._clients: Clients | None = None
        self.process: SimProcess = world.node(f"b{number}", self._program, number=number, wal=WalKind.OBJECT)

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker sees it."""
        assert self._clients is not None
        return self._clients.subscription.image

    @property
    def epoch(self) -> int:
        """The node epoch of its present life."""
        assert self._clients is not None
        return self._clients.session.node_epoch

    @property
    def is_ready(self) -> bool:
        """Whether its log is open."""
        return self._clients is not None and (self.node_id, NodeEpoch(self.epoch)) in self.image[WALS]

    async def submit(self, **kind: Any) -> wire.OperationResult:
        """Submit one operation."""
        assert self._clients is not None
        return await self._clients.session.submit(wire.Operation(**kind))

    async def create_topic(self, partitions: int) -> bytes:
        """Create a topic and return its id. The leaders create the streams of its partitions."""
        held = await self.submit(
            create_topic=wire.CreateTopic(name="t", partitions=partitions, replication_factor=-1)
        )
        return held.topic_held.topic_id

    async def _program(self, clients: Clients) -> None:
        self._clients = clients
        await self.submit(open_wal=wire.OpenWal())
        await asyncio.gather(self._serve(), self._take_over(), self._stop_when_fenced(clients))

    async def _stop_when_fenced(self, clients: Clients) -> None:
        await clients.session.fenced.wait()
        raise NodeFencedError(f"broker {self.node_id} was fenced")

    async def _serve(self) -> None:
        """Open the led partitions, append to them, upload occasionally."""
        while True:
            await self._pause()
            try:
                await self._open_led()
                own = self._own_streams()
                for row in own:
                    self._append(row)
                if len(self._slots()) > SLOTS_KEPT:
                    await self._upload(own, self._slots())
            except OperationError:
                continue  # the image lagged: try again

    async def _open_led(self) -> None:
        missing = [
            {"topic": partition.topic_id.hex(), "partition": str(partition.partition)}
            for partition in self.image[PARTITIONS].find(PARTITIONS_LED_BY, self.node_id)
            if not self._streams_of(partition)
        ]
        if missing:
            tags = [wire.StreamTags(tags=each) for each in missing]
            made = await self.submit(create_streams=wire.CreateStreams(streams=tags))
            assert self._clients is not None
            # otherwise it would create them twice
            await self._clients.subscription.wait_for(made.commit_index)
        wanted = [
            wire.OpenStream(stream_id=row.stream_id, stream_epoch=partition.leader_epoch)
            for partition in self.image[PARTITIONS].find(PARTITIONS_LED_BY, self.node_id)
            for row in self._streams_of(partition)
            if not row.open and row.stream_epoch < partition.leader_epoch
        ]
        if wanted:
            await self.submit(open_streams=wire.OpenStreams(streams=wanted))

    def _streams_of(self, partition: PartitionRow) -> Sequence[StreamRow]:
        key = (partition.topic_id.hex(), str(partition.partition))
        return self.image[STREAMS].find(STREAMS_OF_PARTITION, key)

    def _own_streams(self) -> list[StreamRow]:
        return [
            row
            for row in self.image[STREAMS].find(STREAMS_OPEN_AT, self.node_id)
            if row.node_epoch == self.epoch
        ]

    def _slots(self) -> list[UploadRange]:
        ends: dict[int, int] = {row.stream_id: row.end_offset for row in self._own_streams()}
        kept = self._store.slots.get((self.node_id, self.epoch), [])
        return [slot for slot in kept if slot[0] in ends and slot[3] > ends[slot[0]]]

    def _append(self, row: StreamRow) -> None:
        """Acknowledge some records after the last ones of this life."""
        log = (self.node_id, self.epoch)
        before = [slot[3] for slot in self._store.slots.get(log, []) if slot[0] == row.stream_id]
        start = max([row.end_offset, *before])
        self._store.put(log, (row.stream_id, row.stream_epoch, start, start + 3))

    async def _upload(
        self,
        streams: Sequence[StreamRow],
        slots: Sequence[UploadRange],
        recovered: wire.WalName | None = None,
    ) -> None:
        """Commit the content of slots above the streams' ends, one run per stream."""
        runs: list[UploadRange] = []
        for row in streams:
            mine = [slot for slot in slots if slot[:2] == (row.stream_id, row.stream_epoch)]
            end = max((slot[3] for slot in mine), default=0)
            if end > row.end_offset:
                runs.append((row.stream_id, row.stream_epoch, row.end_offset, end))
        if not runs:
            return
        prepared = await self.submit(prepare_objects=wire.PrepareObjects(count=1, ttl_ms=60_000))
        body = upload_body([prepared.objects_reserved.first_object_id], set_ranges=sorted(runs))
        body.trim_sequence = 0 if recovered is not None else 1
        if recovered is not None:
            body.recovered.CopyFrom(recovered)
        await self.submit(commit_upload=body)

    async def _take_over(self) -> None:
        """Recover every log assigned to this life."""
        while True:
            await self._pause()
            for row in list(self.image[WALS].find(WALS_RECOVERED_BY, self.node_id)):
                if row.recoverer_epoch == self.epoch and not self.stalls:
                    try:
                        await self._recover(row)
                    except OperationError:
                        continue

    async def _recover(self, row: WalRow) -> None:
        """Fence, commit, close the streams, close the log. A crash may happen between any two steps."""
        log, name = (row.node_id, row.wal_epoch), wire.WalName(node_id=row.node_id, wal_epoch=row.wal_epoch)
        self._store.fenced.add(log)
        slots = self._store.slots.get(log, [])
        left = [
            each
            for each in self.image[STREAMS].find(STREAMS_OPEN_AT, row.node_id)
            if each.node_epoch == row.wal_epoch
        ]
        for each in left:  # one at a time, so that a recovery can be interrupted
            await self._upload([each], slots, name)
            await self._pause()
            state = wire.StreamState(
                stream_id=each.stream_id,
                stream_epoch=each.stream_epoch,
                end_offset=self._end_of(each.stream_id),
            )
            await self.submit(close_streams=wire.CloseStreams(streams=[state], recovered=name))
            while self.stalls:
                await self._pause()
        await self.submit(close_wal=wire.CloseWal(wal=name, end_sequence=1 << 20))
        self.closed.append(log)

    def _end_of(self, stream_id: int) -> int:
        row = self.image[STREAMS].get(StreamId(stream_id))
        assert row is not None
        return row.end_offset

    async def _pause(self) -> None:
        assert self._clients is not None
        await self._clients.runtime.clock.sleep(PAUSE_S)


class BrokersWorld:
    """Three controllers and some brokers with logs in one store."""

    def __init__(self, seed: int, brokers: int = 3) -> None:
        self.world = QuorumWorld(seed)
        self.store = LogStore()
        self.brokers = [Broker(self.world, self.store, number) for number in range(brokers)]

    async def begin(self, partitions: int = 6) -> bytes:
        """Start everything; create a topic whose partitions are led and appended to; return its id."""
        self.world.start()
        for broker in self.brokers:
            await wait_until(lambda each=broker: each.is_ready)  # type: ignore[misc]
        await self._client().pause_balancer(True, timeout_s=5)  # these brokers move no partitions
        topic_id = await self.brokers[0].create_topic(partitions)
        await self.until_served(self.brokers)
        await asyncio.sleep(4)  # the leader has heard all nodes for longer than a session timeout
        return topic_id

    async def announce_stop(self, ttl_ms: int) -> None:
        """Announce the stop of the cluster."""
        await self._client().announce_stop(ttl_ms, timeout_s=5)

    def _client(self) -> ClusterClient:
        runtime = self.brokers[0].process.runtime
        assert runtime is not None
        return ClusterClient(runtime.network, runtime.clock, ADDRESSES)

    async def until_served(self, brokers: Sequence[Broker]) -> None:
        """Wait until these brokers serve everything, and no log of another broker is left."""
        witness = brokers[0]

        def served() -> bool:
            image = witness.image
            living = {(each.node_id, each.epoch) for each in brokers}
            opened = [(row.node_id, row.node_epoch) for row in image[STREAMS] if row.open]
            return (
                len(opened) == len(image[STREAMS]) > 0
                and set(opened) <= living
                and {(row.node_id, row.wal_epoch) for row in image[WALS]} <= living
            )

        await wait_until(served, timeout_s=60)

    def check(self, witness: Broker) -> None:
        """Check that exactly the acknowledged records are committed. Records that only the last
        owner's log contains are in no object yet.
        """
        image = witness.image
        for stream_id, end in self.store.acknowledged().items():
            row = image[STREAMS].get(StreamId(stream_id))
            assert row is not None
            assert row.end_offset <= end, f"stream {stream_id} has unknown records"
            own = self.store.slots.get((row.node_id, row.node_epoch), [])
            before = [
                slot[3]
                for log, slots in self.store.slots.items()
                for slot in slots
                if slot[0] == stream_id and log != (row.node_id, row.node_epoch)
            ]
            assert row.end_offset >= max(before, default=0), f"stream {stream_id} lost acknowledged records"
            starts = sorted(slot[2] for slot in own if slot[0] == stream_id)
            assert not starts or starts[0] >= max(before, default=0), (
                f"stream {stream_id} has a duplicate offset"
            )
