"""Random, mostly invalid operations against validators and apply: each is refused with a code or
leaves a valid image.

Any other error would end the leader, and then the next one, because the node repeats its operation.
Seeded, so that a failure can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.nodes import NODES, WalKind
from ponor_metadata.nouns.streams import STREAMS
from ponor_rpc.errors import OperationError

from services.controller.tests.ledger import Ledger

WORLDS: Final = 6
OPERATIONS_PER_WORLD: Final = 120
KINDS: Final = tuple(field.name for field in wire.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields)
TEXTS: Final = ("t", "", "a.b", "a_b", "topic", "partition", "\x00", "x" * 300, "retention.ms", "é")
NUMBERS: Final = (-1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**49, (7 << 49) + 2**40, 1_000, 60_000)
BOUNDS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


class World:
    """A small cluster, and random operations on it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.ledger = ledger = Ledger()
        self.callers = [
            ledger.register(0, wal=WalKind.OBJECT),
            ledger.register(1, records_pb2.NODE_ROLE_COMPACTOR),
            ledger.register(2, records_pb2.NODE_ROLE_GC),
        ]
        broker = self.callers[0]
        ledger.do(broker, open_wal=wire.OpenWal())
        topic = wire.CreateTopic(name="t", partitions=3, replication_factor=-1)
        self.topic = ledger.do(broker, create_topic=topic).topic_held.topic_id
        self.streams = ledger.create_streams(broker, 6, topic=self.topic.hex(), partition="0")
        self.objects: list[int] = []
        late = [ledger.register(3, wal=WalKind.FILE), ledger.register(4, wal=WalKind.OBJECT)]
        ledger.do(late[1], open_wal=wire.OpenWal())
        self.streams += ledger.create_streams(late[0], 3)
        self.callers += late

    def operate(self) -> bool:
        """Submit one operation of a random caller; return whether it was accepted."""
        chance, ledger = self.chance, self.ledger
        ledger.now_ms += chance.choice((0, 1, 1_000, 70_000, 700_000))
        kind, caller = chance.choice(KINDS), chance.choice(self.callers)
        node = ledger.image[NODES].get(caller.node_id)
        if node is None or node.fenced:
            return False
        body = getattr(wire.Operation(), kind)
        self._fill(body)
        steer = STEERED.get(kind)
        if steer is not None and chance.random() < 0.8:
            steer(self, body)
        try:
            decision = ledger._validate(caller, **{kind: body})
        except OperationError:
            return False
        if kind == "prepare_objects":
            reserved = decision.result.objects_reserved
            self.objects += range(reserved.first_object_id, reserved.first_object_id + min(reserved.count, 5))
        ledger.apply([*decision.records])
        ledger.apply(decision.closing_records)
        return True

    def steer_preparation(self, body: wire.PrepareObjects) -> None:
        body.count, body.ttl_ms = self.chance.choice((1, 2, 5)), 3_600_000

    def steer_opening(self, body: wire.OpenStreams) -> None:
        del body.streams[:]
        body.streams.add(
            stream_id=self.chance.choice(self.streams), stream_epoch=self.chance.choice((0, 1, 2, 3))
        )

    def steer_upload(self, body: wire.CommitUpload) -> None:
        row = self.ledger.image[STREAMS].get(self.chance.choice(self.streams))  # type: ignore[arg-type]
        if row is None or not self.objects:
            return
        body.Clear()
        end = row.end_offset + self.chance.choice((1, 5, 2**62))
        held = wire.UploadedRange(
            stream_id=row.stream_id,
            stream_epoch=row.stream_epoch,
            start_offset=row.end_offset,
            end_offset=min(end, 2**63 - 1),
        )
        if self.chance.random() < 0.5:
            body.stream_objects.add(object_id=self.chance.choice(self.objects), size_bytes=10, range=held)
        else:
            body.stream_set_object.object_id = self.chance.choice(self.objects)
            body.stream_set_object.size_bytes = 10
            body.stream_set_object.ranges.append(held)

    def steer_trim(self, body: wire.TrimStreams) -> None:
        rows = [row for row in self.ledger.image[STREAMS] if row.open]
        del body.streams[:]
        for row in rows[:1]:
            body.streams.add(
                stream_id=row.stream_id, stream_epoch=row.stream_epoch, start_offset=row.end_offset
            )

    def _fill(self, message: Message) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.chance.random() < 0.15:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                values: Any = getattr(message, field.name)
                for _ in range(self.chance.choice((0, 1, 2))):
                    values[self.chance.choice(TEXTS)] = self.chance.choice(TEXTS)
            elif field.is_repeated:
                for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
                    if field.type == FieldDescriptor.TYPE_MESSAGE:
                        self._fill(getattr(message, field.name).add())
                    else:
                        getattr(message, field.name).append(self._value(field.type))
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                if self.chance.random() < 0.6:
                    each = getattr(message, field.name)
                    each.SetInParent()
                    self._fill(each)
            else:
                setattr(message, field.name, self._value(field.type))

    def _value(self, kind: int) -> Any:
        choice = self.chance.choice
        if kind == FieldDescriptor.TYPE_BOOL:
            return choice((False, True))
        if kind == FieldDescriptor.TYPE_STRING:
            return choice(TEXTS)
        if kind == FieldDescriptor.TYPE_BYTES:
            return choice((self.topic, b"", b"x" * 16))
        if kind == FieldDescriptor.TYPE_ENUM:
            return choice((0, 1, 2, 3, 7))
        known: Sequence[int] = (*self.streams, *self.objects)
        share = self.chance.random()
        number = (
            choice(known) if share < 0.35 else choice((0, 1, 2, 3, 5, 10, 100) if share < 0.8 else NUMBERS)
        )
        low, high = BOUNDS[kind]
        return max(low, min(high, number))


STEERED: Final[Mapping[str, Callable[[World, Any], None]]] = {
    "prepare_objects": World.steer_preparation,
    "open_streams": World.steer_opening,
    "commit_upload": World.steer_upload,
    "trim_streams": World.steer_trim,
}
"""Kinds that are rarely valid with random numbers alone."""


@pytest.mark.parametrize("seed", range(8))
def test_no_operation_breaks_an_invariant(seed: int) -> None:
    chance, taken = random.Random(seed), 0
    for _ in range(WORLDS):
        world = World(chance)
        for number in range(OPERATIONS_PER_WORLD):
            taken += world.operate()
            if number % 40 == 39:
                world.ledger.reclaim()
                validate(world.ledger.image)
    assert taken > 100
