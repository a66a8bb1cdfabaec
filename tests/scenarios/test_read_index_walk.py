"""The read index in an example: stream object, stream set object of node A, stream set object of
node B, stream object, lag.

Node A writes a long run, which becomes a stream object, then a short one, which shares a stream set
object with other streams. The partition moves to node B, which writes a short run, then another
long one. Another broker follows the log and looks up offsets 30 to 460 while its image lags.
"""

from __future__ import annotations

from typing import Any

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import Piece, find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.tables.ranges import StreamPiece, encode_ranges
from ponor_runtime.identity import ClusterOrdinal, ObjectId, StreamId, compose_id, compose_node_id

CLUSTER = ClusterOrdinal(1)
NODE_A = compose_node_id(CLUSTER, 1)
NODE_B = compose_node_id(CLUSTER, 2)
ORDERS, PAYMENTS = (StreamId(compose_id(CLUSTER, number)) for number in (1, 2))
LONG_RUN_OF_A, MIXED_OF_A, UNRELATED_OF_A, MIXED_OF_B, LONG_RUN_OF_B, NOT_YET_HEARD_OF = (
    ObjectId(compose_id(CLUSTER, number)) for number in range(1, 7)
)


class FollowingBroker:
    """A broker with only an image, which receives one batch after the other."""

    def __init__(self) -> None:
        self.image = MetadataImage()

    def hears(self, *changes: Any) -> None:
        records = [pb.Record(**{kind: message}) for kind, message in changes]
        index = self.image.index + 1
        batch = pb.RecordBatch(index=index, term=1, cluster_time_ms=index, records=records)
        self.image.apply_committed(batch.SerializeToString())
        validate(self.image)

    def finds(self, start_offset: int, end_offset: int) -> list[tuple[ObjectId, int, int]]:
        pieces = find_pieces(self.image, ORDERS, start_offset, end_offset)
        return [(piece.object_id, piece.start_offset, piece.end_offset) for piece in pieces]


def node_registered(node_id: int) -> Any:
    return "node_registered", pb.NodeRegistered(node_id=node_id, node_epoch=1, role=pb.NODE_ROLE_BROKER)


def prepared(first: ObjectId, count: int, node_id: int) -> Any:
    return "objects_prepared", pb.ObjectsPrepared(
        first_object_id=first,
        count=count,
        node_id=node_id,
        node_epoch=1,
        expires_at_ms=60_000,
        namespace="home",
    )


def opened(stream_id: StreamId, epoch: int, node_id: int) -> Any:
    return "stream_opened", pb.StreamOpened(
        stream_id=stream_id, stream_epoch=epoch, node_id=node_id, node_epoch=1
    )


def stream_object(object_id: ObjectId, start: int, end: int) -> Any:
    return "stream_object_committed", pb.StreamObjectCommitted(
        object_id=object_id, size_bytes=8 << 20, stream_id=ORDERS, start_offset=start, end_offset=end
    )


def stream_set_object(object_id: ObjectId, node_id: int, *pieces: tuple[StreamId, int, int]) -> Any:
    return "stream_set_object_committed", pb.StreamSetObjectCommitted(
        object_id=object_id,
        size_bytes=1 << 20,
        node_id=node_id,
        packed_ranges=encode_ranges(StreamPiece(*piece) for piece in pieces),
    )


@pytest.fixture
def broker() -> FollowingBroker:
    broker = FollowingBroker()
    broker.hears(
        ("cluster_formatted", pb.ClusterFormatted(cluster_id="c", cluster_ordinal=CLUSTER, namespace="home"))
    )
    broker.hears(node_registered(NODE_A), node_registered(NODE_B))
    broker.hears(*(("stream_created", pb.StreamCreated(stream_id=stream)) for stream in (ORDERS, PAYMENTS)))

    # Node A owns both streams. Orders 0-100 become a stream object; orders 100-150 share an object
    # with payments.
    broker.hears(opened(ORDERS, 1, NODE_A), opened(PAYMENTS, 1, NODE_A))
    broker.hears(prepared(LONG_RUN_OF_A, 3, NODE_A))
    broker.hears(stream_object(LONG_RUN_OF_A, 0, 100))
    broker.hears(stream_set_object(MIXED_OF_A, NODE_A, (ORDERS, 100, 150), (PAYMENTS, 0, 20)))

    # Orders move to node B; A continues with payments, so its newest object does not contain orders.
    broker.hears(("stream_closed", pb.StreamClosed(stream_id=ORDERS, stream_epoch=1)))
    broker.hears(opened(ORDERS, 2, NODE_B))
    broker.hears(stream_set_object(UNRELATED_OF_A, NODE_A, (PAYMENTS, 20, 90)))

    # Node B: orders 150-200 in a stream set object, orders 200-400 as a stream object.
    broker.hears(prepared(MIXED_OF_B, 3, NODE_B))
    broker.hears(stream_set_object(MIXED_OF_B, NODE_B, (ORDERS, 150, 200)))
    broker.hears(stream_object(LONG_RUN_OF_B, 200, 400))
    return broker


def test_a_lookup_uses_objects_of_both_nodes_and_ends_where_the_metadata_end(broker: FollowingBroker) -> None:
    assert broker.finds(30, 460) == [
        (LONG_RUN_OF_A, 30, 100),  # the stream's own object, from its middle on
        (MIXED_OF_A, 100, 150),  # its end: the ranges name node A, whose objects are scanned
        (MIXED_OF_B, 150, 200),  # after the move, the ranges name node B
        (LONG_RUN_OF_B, 200, 400),  # the stream's own object again
    ]  # 400 to 460 are not in the image yet: the answer is short


def test_a_repeated_lookup_continues_when_the_metadata_have_caught_up(broker: FollowingBroker) -> None:
    assert broker.finds(400, 460) == []
    broker.hears(stream_set_object(NOT_YET_HEARD_OF, NODE_B, (ORDERS, 400, 500)))
    assert broker.finds(400, 460) == [(NOT_YET_HEARD_OF, 400, 460)]


def test_a_request_within_one_object_costs_one_piece(broker: FollowingBroker) -> None:
    (piece,) = find_pieces(broker.image, ORDERS, 160, 180)
    assert piece == Piece(MIXED_OF_B, "home", 0, 1 << 20, 160, 180)


def test_after_a_trim_the_lookup_begins_at_the_new_start(broker: FollowingBroker) -> None:
    broker.hears(
        ("stream_trimmed", pb.StreamTrimmed(stream_id=ORDERS, start_offset=120)),
        ("objects_destroyed", pb.ObjectsDestroyed(object_ids=[LONG_RUN_OF_A])),
    )
    assert broker.finds(30, 460) == []
    assert broker.finds(120, 180) == [(MIXED_OF_A, 120, 150), (MIXED_OF_B, 150, 180)]
