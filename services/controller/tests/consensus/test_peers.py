"""Connections between controllers: messages survive encoding, the queue is limited, and strangers
are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_controller.consensus.address_book import AddressBook, Addresses
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.peer_frames import (
    PeerFrameError,
    decode_messages,
    encode_messages,
    replica_message,
)
from ponor_controller.consensus.peer_queue import BYTES_MAX, FRAME_TARGET_BYTES, MESSAGES_MAX, PeerQueue
from ponor_controller.consensus.peers import Peers
from ponor_raft import messages as raft
from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.membership import Membership, ReplicaId
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import PEER
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks, report_to_loop
from ponor_runtime.telemetry import Telemetry

from libs.rpc.tests import closing
from services.controller.tests.log_writer import MEMBERS, entry_of

ONE, TWO = ReplicaId(3_001, b"1" * 16), ReplicaId(3_002, b"2" * 16)
IDENTITY = DirectoryIdentity("cluster", UUID(bytes=TWO.directory_id), NodeId(TWO.node_id), ())
UINT64 = st.integers(0, 2**63 - 1)
META = SnapshotMeta(9, 2, Membership((ONE,), (TWO,)), b"d" * 16, 1_000)


def _of(kind: type, *fields: st.SearchStrategy[object]) -> st.SearchStrategy[raft.Message]:
    return st.builds(kind, st.just(ONE), st.just(TWO), UINT64, *fields)


ENTRIES = st.lists(st.builds(Entry, UINT64, UINT64, st.binary(max_size=50)), max_size=3).map(tuple)
MESSAGES = st.one_of(
    _of(raft.VoteRequest, UINT64, UINT64, st.booleans(), st.booleans()),
    _of(raft.VoteResponse, st.booleans(), st.booleans()),
    _of(raft.AppendRequest, UINT64, UINT64, ENTRIES, UINT64),
    _of(raft.AppendResponse, UINT64, st.booleans(), UINT64, UINT64, UINT64),
    _of(raft.HeartbeatRequest, UINT64, UINT64),
    _of(raft.HeartbeatResponse, UINT64),
    _of(raft.TimeoutNow),
    _of(raft.SnapshotChunk, st.just(META), UINT64, st.binary(max_size=50)),
    _of(raft.SnapshotAck, UINT64, UINT64, st.booleans()),
    _of(raft.ReadIndexRequest, UINT64),
    _of(raft.ReadIndexResponse, UINT64, UINT64),
)


@given(st.lists(MESSAGES, max_size=6))
def test_messages_survive_encoding(messages: list[raft.Message]) -> None:
    frame = wire.ExchangeRequest.FromString(encode_messages(messages))
    assert list(decode_messages(frame.messages, ONE, TWO)) == messages


@given(st.lists(st.builds(Entry, UINT64, UINT64, st.binary(max_size=3_000)), max_size=3), UINT64, UINT64)
def test_a_joined_append_equals_the_encoding_of_protobuf(
    entries: list[Entry], prev_index: int, commit: int
) -> None:
    message = raft.AppendRequest(ONE, TWO, 7, prev_index, 6, tuple(entries), commit)
    frame = encode_messages([message, raft.TimeoutNow(ONE, TWO, 7), message])
    assert wire.ExchangeRequest.FromString(frame).SerializeToString() == frame


def test_an_entry_that_changes_the_membership_keeps_its_kind() -> None:
    entry = entry_of(1, 1)
    assert entry.membership is not None
    frame = encode_messages([raft.AppendRequest(ONE, TWO, 1, 0, 0, (entry,), 0)])
    (message,) = decode_messages(wire.ExchangeRequest.FromString(frame).messages, ONE, TWO)
    assert isinstance(message, raft.AppendRequest)
    assert message.entries[0].membership == Membership((MEMBERS[0].replica,))


@given(st.binary(max_size=200))
def test_invalid_bytes_are_refused_without_other_effects(data: bytes) -> None:
    try:
        frame = wire.ExchangeRequest.FromString(data)
    except DecodeError:
        return
    with suppress(PeerFrameError, DecodeError):
        list(decode_messages(frame.messages, ONE, TWO))


async def test_the_queue_drops_the_oldest_at_its_limits_and_fills_frames() -> None:
    queue = PeerQueue()
    beat = raft.HeartbeatRequest(ONE, TWO, 1, 0, 0)
    assert sum(queue.put(beat) for _ in range(MESSAGES_MAX + 5)) == 5
    assert queue.clear() == MESSAGES_MAX
    large = raft.AppendRequest(ONE, TWO, 1, 0, 0, (Entry(1, 1, bytes(FRAME_TARGET_BYTES)),), 0)
    dropped = sum(queue.put(large) for _ in range(40))
    assert dropped == 40 - BYTES_MAX // (FRAME_TARGET_BYTES + 96)
    queue.put(beat)
    taken = queue.take()
    assert taken == [large], "a large message has its own frame"
    queue.clear()
    queue.put(beat)
    queue.put(beat)
    queue.put(large)
    assert queue.take() == [beat, beat]


class Core:
    """Records its calls."""

    membership = Membership((ONE, TWO))

    def __init__(self) -> None:
        self.stepped: list[raft.Message] = []
        self.settled = 0
        self.suspected: list[ReplicaId] = []
        self.began: list[ReplicaId] = []

    def step(self, message: raft.Message) -> None:
        self.stepped.append(message)

    def flush(self) -> None:
        self.settled = len(self.stepped)

    def reachable(self) -> None:
        """Not used here."""

    def unreachable(self, peer: ReplicaId) -> None:
        """Lost messages are normal."""

    def peer_restarted(self, peer: ReplicaId) -> None:
        self.began.append(peer)

    def suspect(self, peer: ReplicaId) -> None:
        self.suspected.append(peer)


PATIENCE_SECONDS = 90.0
"""Only a hanging test takes this long, even on a busy machine."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    closing.give_time(monkeypatch)


@asynccontextmanager
async def _called(incarnation: int = 0) -> AsyncIterator[tuple[Core, Connection]]:
    """The peer port of controller TWO, and an open connection to it."""
    network = GrpcNetwork()
    runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), network, Telemetry())
    tasks = BackgroundTasks(report_to_loop)
    peers = Peers(IDENTITY, lambda: incarnation, AddressBook(()), Addresses("", ""), network, runtime, tasks)
    core = Core()
    peers.attach(core)
    listener = await network.listen("127.0.0.1:0", {PEER: peers.handle})
    connection = await network.connect(listener.address, PEER)
    try:
        yield core, connection
    finally:
        await connection.close()
        await tasks.close()
        await listener.close()
        await network.close()


def _hello(**changes: object) -> bytes:
    hello = wire.PeerHello(cluster_id="cluster", sender=replica_message(ONE), to=replica_message(TWO))
    hello.MergeFrom(wire.PeerHello(**changes))  # type: ignore[arg-type]
    return wire.ExchangeRequest(hello=hello).SerializeToString()


async def _next(connection: Connection) -> wire.ExchangeResponse:
    return wire.ExchangeResponse.FromString(await asyncio.wait_for(connection.receive(), PATIENCE_SECONDS))


async def test_a_peer_connects_sends_and_its_end_is_detected() -> None:
    async with _called() as (core, connection):
        await connection.send(_hello())
        assert (await _next(connection)).WhichOneof("frame") == "welcome"
        message = raft.HeartbeatRequest(ONE, TWO, 3, 1, 1)
        await connection.send(encode_messages([message]))
        assert (await _next(connection)).WhichOneof("frame") == "alive", "so that silence is detected"
        while not core.stepped:
            await asyncio.sleep(0.01)
        assert core.stepped == [message]
        assert core.settled == 1, "with its frame, in the same turn of the loop"
        assert core.began == [ONE]
        await connection.close()
        while ONE not in core.suspected:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cluster_id": "another"}, "belongs to cluster"),
        ({"to": wire.PeerReplica(node_id=3_002, directory_id=b"x" * 16)}, "remove the lost member"),
        ({"to": wire.PeerReplica(node_id=9, directory_id=b"2" * 16)}, "not node 9"),
        ({"sender": wire.PeerReplica(node_id=9, directory_id=b"9" * 16)}, "before the forced recovery"),
    ],
)
async def test_strangers_are_refused_with_a_remedy(changes: dict[str, object], says: str) -> None:
    async with _called(incarnation=1) as (core, connection):
        await connection.send(_hello(**changes))
        refused = (await _next(connection)).refused
        assert refused.code == error_pb2.ERROR_CODE_INVALID_REQUEST
        assert says in refused.message
        assert core.stepped == []


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff"],
        [encode_messages([])],
        [_hello(), b"\xff"],
        [_hello(), _hello()],
        [_hello(sender=wire.PeerReplica(node_id=-1))],
        [_hello(sender=wire.PeerReplica(node_id=1 << 30))],
        [_hello(sender=wire.PeerReplica(directory_id=b"short"))],
        [_hello(to=wire.PeerReplica(node_id=1 << 30))],
    ],
)
async def test_invalid_frames_end_only_their_stream(frames: list[bytes]) -> None:
    async with _called() as (core, connection):
        for frame in frames:
            await connection.send(frame)
        with pytest.raises(ConnectionClosedError):
            for _ in range(10):
                await asyncio.wait_for(connection.receive(), PATIENCE_SECONDS)
        assert core.stepped == []


def test_configured_addresses_precede_those_in_the_log_and_those_of_callers() -> None:
    book = AddressBook(())
    other = MEMBERS[0].replica
    assert (book.peer_address(other), book.service_address(other)) == ("", "")
    book.add_hint(other, Addresses("hint:1", "hint:2"))
    assert book.peer_address(other) == "hint:1"
    book.set_logged(MEMBERS)
    assert book.peer_address(other) == "c:1"
    configured = AddressBook([MEMBERS[0].__class__(MEMBERS[0].node_id, bytes(16), "new:1", "")])
    configured.set_logged(MEMBERS)
    assert (configured.peer_address(other), configured.service_address(other)) == ("new:1", "c:2")
