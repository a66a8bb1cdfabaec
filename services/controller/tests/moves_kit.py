"""A topic on a ledger, with streams that its leaders open and close, for tests of moves. No log, no
network; the driver's decisions are applied as the leader does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.moves.overdue import Action, Due, find_due
from ponor_controller.kernel.operation import Caller
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveRow, PartitionRow
from ponor_runtime.identity import NodeId

from services.controller.tests.ledger import Ledger

KINDS = ("META", "data")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Moving:
    """A cluster of `brokers` brokers and one topic of `partitions` partitions, all led and open."""

    def __init__(self, *, brokers: int = 3, partitions: int = 3, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.brokers = [self.ledger.register(number) for number in range(brokers)]
        held = self.ledger.do(
            self.brokers[0],
            create_topic=wire.CreateTopic(name="orders", partitions=partitions, replication_factor=-1),
        ).topic_held
        self.topic_id = held.topic_id
        self.streams = {
            number: [
                self.ledger.create_streams(
                    self.leader(number), topic=self.topic_id.hex(), partition=str(number), kind=kind
                )[0]
                for kind in KINDS
            ]
            for number in range(partitions)
        }
        for number in range(partitions):
            self.open(number)

    # State

    def partition(self, number: int = 0) -> PartitionRow:
        row = self.ledger.view[PARTITIONS].get((self.topic_id, number))
        assert row is not None
        return row

    def move(self, number: int = 0) -> MoveRow | None:
        return self.ledger.view[MOVES].get((self.topic_id, number))

    def leader(self, number: int = 0) -> Caller:
        return self.broker(self.partition(number).leader_id)

    def broker(self, node_id: NodeId) -> Caller:
        return next(each for each in self.brokers if each.node_id == node_id)

    def others(self, number: int = 0) -> list[Caller]:
        """Brokers that do not lead the partition."""
        return [each for each in self.brokers if each.node_id != self.partition(number).leader_id]

    def is_open(self, number: int = 0) -> bool:
        key = (self.topic_id.hex(), str(number))
        return any(row.open for row in self.ledger.view[STREAMS].find(STREAMS_OF_PARTITION, key))

    def owner(self, number: int = 0) -> Caller:
        """The broker that last opened the partition's streams."""
        return self.broker(self.ledger.stream(self.streams[number][0]).node_id)

    # Operations of brokers

    def open(self, number: int = 0) -> None:
        """The leader opens the partition's streams under its leader epoch."""
        partition = self.partition(number)
        body = wire.OpenStreams(
            streams=[
                wire.OpenStream(stream_id=stream_id, stream_epoch=partition.leader_epoch)
                for stream_id in self.streams[number]
            ]
        )
        self.ledger.do(self.leader(number), open_streams=body)

    def close(self, number: int = 0) -> None:
        """Their owner closes them."""
        rows = [self.ledger.stream(stream_id) for stream_id in self.streams[number]]
        states = [
            wire.StreamState(
                stream_id=row.stream_id,
                stream_epoch=row.stream_epoch,
                start_offset=row.start_offset,
                end_offset=row.end_offset,
            )
            for row in rows
        ]
        self.ledger.do(self.owner(number), close_streams=wire.CloseStreams(streams=states))

    def begin(
        self,
        *wanted: tuple[int, int],
        caller: Caller | None = None,
        cause: records_pb2.MoveCause.ValueType = records_pb2.MOVE_CAUSE_REQUEST,
        reason: str = "",
        traceparent: str = "",
    ) -> list[str]:
        """Request moves, (partition, target id) each; return the codes of the outcomes ("": done)."""
        body = wire.MovePartitions(
            moves=[
                wire.PartitionMove(topic_id=self.topic_id, partition=number, target_id=target_id)
                for number, target_id in wanted
            ],
            cause=cause,
            reason=reason,
        )
        return codes(self.ledger.do(caller or self.brokers[0], move_partitions=body, traceparent=traceparent))

    def cancel(
        self,
        *numbers: int,
        leader_epoch: int = 0,
        caller: Caller | None = None,
        reason: str = "changed my mind",
    ) -> list[str]:
        body = wire.CancelMoves(partitions=self.names(numbers, leader_epoch), reason=reason)
        return codes(self.ledger.do(caller or self.brokers[0], cancel_moves=body))

    def elect(
        self, *numbers: int, caller: Caller | None = None, leader_epoch: int | None = None
    ) -> list[str]:
        """Request the election, as the leader of the first partition unless another broker is named."""
        epoch = self.partition(numbers[0]).leader_epoch if leader_epoch is None else leader_epoch
        body = wire.ElectMoved(partitions=self.names(numbers, epoch))
        return codes(self.ledger.do(caller or self.leader(numbers[0]), elect_moved=body))

    def names(self, numbers: Sequence[int], leader_epoch: int = 0) -> list[wire.PartitionName]:
        return [
            wire.PartitionName(topic_id=self.topic_id, partition=number, leader_epoch=leader_epoch)
            for number in numbers
        ]

    # The controller's own steps

    def due(self, *, grace_left_ms: int = 0) -> Due:
        return find_due(self.ledger.view, self.ledger.now_ms, self._is_suspected, grace_left_ms=grace_left_ms)

    def drive(self, *, grace_left_ms: int = 0) -> list[Action]:
        """Run the driver once."""
        deeds = self.due(grace_left_ms=grace_left_ms).interventions
        self.ledger.apply([deed.record for deed in deeds])
        return [deed.action for deed in deeds]

    def fence(self, broker: Caller) -> None:
        self.ledger.fence(broker)

    def _is_suspected(self, node_id: NodeId) -> bool:
        return node_id in self.ledger.suspected


def codes(result: wire.OperationResult) -> list[str]:
    """Return the outcomes as codes without their prefix, "" for done. Every refusal has a reason."""
    assert result.WhichOneof("outcome") == "moves_answered"
    for outcome in result.moves_answered.outcomes:
        assert bool(outcome.code) == bool(outcome.message)
    return [
        error_pb2.ErrorCode.Name(outcome.code).removeprefix("ERROR_CODE_") if outcome.code else ""
        for outcome in result.moves_answered.outcomes
    ]
