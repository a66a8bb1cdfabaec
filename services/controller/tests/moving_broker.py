"""A broker that moves partitions and can be slow or stuck or lose its state, and a cluster of three
controllers.

The streams contain no data.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.settings import ControllerSettings
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION, StreamRow
from ponor_metadata.nouns.topics import (
    MOVES,
    MOVES_FROM,
    PARTITIONS,
    PARTITIONS_LED_BY,
    MoveRow,
    PartitionRow,
)
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId, compose_node_id
from ponor_simulation.process import SimProcess, wait_until

from services.controller.tests.quorum_world import ORDINAL, Clients, QuorumWorld

SETTINGS = ControllerSettings(
    session_timeout_ms=2_000, progress_interval_ms=200, reelection_timeout_ms=3_000, drain_retry_ms=200
)
OPENS_AT_ONCE_MAX = 500


@dataclass
class MovingBroker:
    """One broker. `closes` and `asks` may change at any time; `poke` makes it check again."""

    number: int
    closes: bool = True
    asks: bool = True
    in_flight_max: int = 0
    clients: Clients | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _inbox: asyncio.Queue[tuple[wire.Operation, asyncio.Future[wire.OperationResult]]] = field(
        default_factory=asyncio.Queue
    )

    @property
    def node_id(self) -> NodeId:
        return compose_node_id(ORDINAL, self.number)

    @property
    def image(self) -> MetadataImage:
        assert self.clients is not None, f"broker {self.number} was never registered"
        return self.clients.subscription.image

    def poke(self) -> None:
        self._changed.set()

    async def run(self, clients: Clients) -> None:
        """The program of its process."""
        self.clients = clients
        clients.subscription.listeners.append(lambda _: self.poke())
        clients.subscription.image_listeners.append(lambda _: self.poke())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve_inbox(clients))
            while True:
                self._changed.clear()
                self.in_flight_max = max(
                    self.in_flight_max, len(self.image[MOVES].find(MOVES_FROM, self.node_id))
                )
                try:
                    await self._give_up(clients)
                    await self._open(clients)
                except OperationError:
                    await clients.runtime.clock.sleep(0.05)
                    continue
                await self._changed.wait()

    async def do(self, **kind: object) -> wire.OperationResult:
        """Send an operation to the controller through this broker, as a tool does."""
        answered: asyncio.Future[wire.OperationResult] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((wire.Operation(**kind), answered))  # type: ignore[arg-type]
        return await answered

    async def _serve_inbox(self, clients: Clients) -> None:
        while True:
            operation, answered = await self._inbox.get()
            try:
                answered.set_result(await clients.session.submit(operation))
            except OperationError as error:
                answered.set_exception(error)

    async def _give_up(self, clients: Clients) -> None:
        """Steps 2 to 5 of a move: close the streams and request the election without waiting in between."""
        moves = list(self.image[MOVES].find(MOVES_FROM, self.node_id))
        opened = [row for move in moves for row in streams_of(self.image, move) if row.open]
        operations: list[wire.Operation] = []
        if opened and self.closes:
            states = [
                wire.StreamState(
                    stream_id=row.stream_id, stream_epoch=row.stream_epoch, end_offset=row.end_offset
                )
                for row in opened
            ]
            operations.append(wire.Operation(close_streams=wire.CloseStreams(streams=states)))
        if moves and self.asks and (self.closes or not opened):
            names: list[wire.PartitionName] = []
            for move in moves:
                partition = self.image[PARTITIONS].get((move.topic_id, move.partition))
                assert partition is not None
                names.append(
                    wire.PartitionName(
                        topic_id=move.topic_id,
                        partition=move.partition,
                        leader_epoch=partition.leader_epoch,
                    )
                )
            operations.append(wire.Operation(elect_moved=wire.ElectMoved(partitions=names)))
        results = await asyncio.gather(*(clients.session.submit(operation) for operation in operations))
        for result in results:
            await clients.subscription.wait_for(result.commit_index)

    async def _open(self, clients: Clients) -> None:
        """Step 6: open the led partitions under the leader epoch."""
        wanted: list[wire.OpenStream] = []
        for partition in self.image[PARTITIONS].find(PARTITIONS_LED_BY, self.node_id):
            if (partition.topic_id, partition.partition) in self.image[MOVES]:
                continue
            rows = streams_of(self.image, partition)
            if not rows:
                await self._make_streams(clients, partition)
                return
            if not rows[0].open:
                wanted += [
                    wire.OpenStream(stream_id=row.stream_id, stream_epoch=partition.leader_epoch)
                    for row in rows
                ]
        if wanted:
            body = wire.OpenStreams(streams=wanted[:OPENS_AT_ONCE_MAX])
            result = await clients.session.submit(wire.Operation(open_streams=body))
            await clients.subscription.wait_for(result.commit_index)
            self.poke()

    async def _make_streams(self, clients: Clients, partition: PartitionRow) -> None:
        """Create a stream for each led partition of the topic that has none."""
        tags = [
            wire.StreamTags(tags={"topic": row.topic_id.hex(), "partition": str(row.partition)})
            for row in self.image[PARTITIONS].find(PARTITIONS_LED_BY, self.node_id)
            if row.topic_id == partition.topic_id and not streams_of(self.image, row)
        ]
        body = wire.CreateStreams(streams=tags[:1_000])
        result = await clients.session.submit(wire.Operation(create_streams=body))
        await clients.subscription.wait_for(result.commit_index)
        self.poke()


def streams_of(image: MetadataImage, row: PartitionRow | MoveRow) -> Sequence[StreamRow]:
    """The partition's streams."""
    return list(image[STREAMS].find(STREAMS_OF_PARTITION, (row.topic_id.hex(), str(row.partition))))


class MovesWorld:
    """Three controllers, some brokers, and one topic."""

    def __init__(self, seed: int, *, brokers: int = 3, settings: ControllerSettings = SETTINGS) -> None:
        self.world = QuorumWorld(seed, settings)
        self.brokers = [MovingBroker(number) for number in range(brokers)]
        self.processes: list[SimProcess] = [
            self.world.node(f"b{each.number}", each.run, number=each.number) for each in self.brokers
        ]
        self.topic_id = b""

    @property
    def image(self) -> MetadataImage:
        """The newest image of a running broker."""
        return max(
            (each.image for each, process in self._pairs() if process.running and each.clients is not None),
            key=lambda image: image.index,
        )

    async def start(self, partitions: int) -> None:
        """Start all; every broker leads its partitions."""
        self.world.start()
        await wait_until(lambda: all(each.clients is not None for each in self.brokers), timeout_s=30)
        body = wire.CreateTopic(name="orders", partitions=partitions, replication_factor=-1)
        self.topic_id = (await self.brokers[0].do(create_topic=body)).topic_held.topic_id
        await self.until(lambda: all(self.is_open(number) for number in range(partitions)))

    async def until(self, condition: object, *, timeout_s: float = 60) -> None:
        await wait_until(condition, timeout_s=timeout_s)  # type: ignore[arg-type]

    async def crash_leader(self) -> None:
        """Kill the leading controller and wait for a new leader; then restart the old one."""
        name = await self.world.leader()
        self.world.controllers[name].crash()
        await self.until(lambda: any(each != name for each in self.world.leaders()))
        self.world.controllers[name].start()

    async def begin(self, number: int, target: MovingBroker) -> None:
        move = wire.PartitionMove(topic_id=self.topic_id, partition=number, target_id=target.node_id)
        body = wire.MovePartitions(moves=[move], cause=records_pb2.MOVE_CAUSE_REQUEST)
        answered = await target.do(move_partitions=body)
        assert [each.code for each in answered.moves_answered.outcomes] == [0]

    def partition(self, number: int = 0) -> PartitionRow:
        row = self.image[PARTITIONS].get((self.topic_id, number))
        assert row is not None
        return row

    def move(self, number: int = 0) -> MoveRow | None:
        return self.image[MOVES].get((self.topic_id, number))

    def leader(self, number: int = 0) -> MovingBroker:
        return self.brokers[self.partition(number).leader_id & 0xFFFF]

    def others(self, number: int = 0) -> list[MovingBroker]:
        return [each for each in self.brokers if each is not self.leader(number)]

    def is_open(self, number: int = 0) -> bool:
        """Whether the leader holds the partition's streams at its leader epoch."""
        partition = self.image[PARTITIONS].get((self.topic_id, number))
        if partition is None:
            return False
        rows = streams_of(self.image, partition)
        held = (True, partition.leader_id, partition.leader_epoch)
        return bool(rows) and all((row.open, row.node_id, row.stream_epoch) == held for row in rows)

    def led(self) -> Counter[int]:
        """Number of partitions that each broker leads, by broker number."""
        return Counter(row.leader_id & 0xFFFF for row in self.image[PARTITIONS])

    def is_fenced(self, broker: MovingBroker) -> bool:
        node = self.image[NODES].get(broker.node_id)
        return node is None or node.fenced

    def _pairs(self) -> list[tuple[MovingBroker, SimProcess]]:
        return list(zip(self.brokers, self.processes, strict=True))
