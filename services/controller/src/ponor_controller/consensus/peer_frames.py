"""Translate Raft messages into frames between controllers, and back.

Frames do not contain the sender and the receiver of a message, because both ends of the stream know them. A
leader encodes an append for every follower and every batch. It therefore joins the bytes of an append itself,
because protobuf objects would copy the bytes of an entry four times
(docs/design/sessions-and-subscriptions.md#cost-of-an-operation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ponor.controller.v1 import peer_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_raft import messages as raft
from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.membership import DIRECTORY_ID_BYTES, Membership, ReplicaId
from ponor_raft.messages import AppendRequest
from ponor_rpc.joined_messages import joined_messages, message_head, number_field
from ponor_runtime.identity import NODE_ID_BOUND

from ponor_controller.consensus.members import membership_in

MESSAGES: Final = wire.ExchangeRequest.MESSAGES_FIELD_NUMBER
MESSAGE: Final = wire.PeerMessages.MESSAGES_FIELD_NUMBER
MESSAGE_OVERHEAD_BYTES: Final = 64
"""Upper bound of a message's size without its data."""


class PeerFrameError(ValueError):
    """A frame is invalid; the receiver closes the stream."""


def message_bytes(message: raft.Message) -> int:
    """Approximate size of a message in a frame."""
    if isinstance(message, raft.AppendRequest):
        return MESSAGE_OVERHEAD_BYTES + sum([len(entry.data) + 32 for entry in message.entries])
    if isinstance(message, raft.SnapshotChunk):
        return 4 * MESSAGE_OVERHEAD_BYTES + len(message.data)
    return MESSAGE_OVERHEAD_BYTES


def encode_messages(messages: Sequence[raft.Message]) -> bytes:
    """One frame of messages."""
    parts: list[bytes] = []
    for message in messages:
        encoded = append_parts(message) if isinstance(message, raft.AppendRequest) else [_encode(message)]
        parts.append(message_head(MESSAGE, sum(map(len, encoded))))
        parts += encoded
    return joined_messages(MESSAGES, sum(map(len, parts)), parts)


def decode_messages(body: wire.PeerMessages, sender: ReplicaId, to: ReplicaId) -> Iterator[raft.Message]:
    """The messages of a frame.

    Raises:
        PeerFrameError: a message has an unknown kind, or its fields contradict each other.
        DecodeError: a record batch is malformed.
    """
    for each in body.messages:
        kind = each.WhichOneof("kind")
        if kind is None:
            raise PeerFrameError("a message has an unknown kind; upgrade this controller")
        try:
            yield _DECODERS[kind](each, sender, to)
        except AssertionError as error:
            raise PeerFrameError(f"a {kind} message is invalid: {error}") from error


def replica(message: wire.PeerReplica | records_pb2.QuorumMember) -> ReplicaId:
    """The replica id from a frame.

    Raises:
        PeerFrameError: the node id or the directory id is not valid.
    """
    if not 0 < message.node_id < NODE_ID_BOUND or len(message.directory_id) != DIRECTORY_ID_BYTES:
        raise PeerFrameError(
            f"invalid replica id: node id {message.node_id}, directory id of {len(message.directory_id)}"
            " bytes"
        )
    return ReplicaId(message.node_id, message.directory_id)


def replica_message(who: ReplicaId) -> wire.PeerReplica:
    """The replica id for a frame."""
    return wire.PeerReplica(node_id=who.node_id, directory_id=who.directory_id)


def _encode(message: raft.Message) -> bytes:
    field, body = _ENCODERS[type(message)](message)
    return wire.PeerMessage(term=message.term, **{field: body}).SerializeToString()


def _encode_chunk(message: raft.SnapshotChunk) -> wire.PeerSnapshotChunk:
    meta = message.meta
    return wire.PeerSnapshotChunk(
        index=meta.index,
        snapshot_term=meta.term,
        voters=map(replica_message, meta.membership.voters),
        learners=map(replica_message, meta.membership.learners),
        digest=meta.digest,
        size_bytes=meta.size_bytes,
        offset=message.offset,
        data=message.data,
    )


def _decode_append(each: wire.PeerMessage, sender: ReplicaId, to: ReplicaId) -> raft.AppendRequest:
    body = each.append_request
    entries = tuple(
        Entry(entry.index, entry.term, entry.data, membership_in(entry.data) if entry.membership else None)
        for entry in body.entries
    )
    return raft.AppendRequest(
        sender,
        to,
        each.term,
        body.prev_index,
        body.prev_term,
        entries,
        body.commit,
        body.commit_term,
        body.acknowledged,
    )


def _decode_chunk(each: wire.PeerMessage, sender: ReplicaId, to: ReplicaId) -> raft.SnapshotChunk:
    body = each.snapshot_chunk
    membership = Membership(tuple(map(replica, body.voters)), tuple(map(replica, body.learners)))
    meta = SnapshotMeta(body.index, body.snapshot_term, membership, body.digest, body.size_bytes)
    return raft.SnapshotChunk(sender, to, each.term, meta, body.offset, body.data)


_ENCODERS: Final[Mapping[type[Any], Callable[[Any], tuple[str, Any]]]] = {
    raft.VoteRequest: lambda m: (
        "vote_request",
        wire.PeerVoteRequest(
            last_index=m.last_index, last_term=m.last_term, pre_vote=m.pre_vote, transfer=m.transfer
        ),
    ),
    raft.VoteResponse: lambda m: (
        "vote_response",
        wire.PeerVoteResponse(pre_vote=m.pre_vote, granted=m.granted),
    ),
    raft.AppendResponse: lambda m: (
        "append_response",
        wire.PeerAppendResponse(
            match_index=m.match_index,
            rejected=m.rejected,
            rejected_index=m.rejected_index,
            hint_index=m.hint_index,
            hint_term=m.hint_term,
        ),
    ),
    raft.HeartbeatRequest: lambda m: (
        "heartbeat_request",
        wire.PeerHeartbeatRequest(commit=m.commit, round=m.round),
    ),
    raft.HeartbeatResponse: lambda m: ("heartbeat_response", wire.PeerHeartbeatResponse(round=m.round)),
    raft.TimeoutNow: lambda _: ("timeout_now", wire.PeerTimeoutNow()),
    raft.SnapshotChunk: lambda m: ("snapshot_chunk", _encode_chunk(m)),
    raft.SnapshotAck: lambda m: (
        "snapshot_ack",
        wire.PeerSnapshotAck(index=m.index, next_offset=m.next_offset, installed=m.installed),
    ),
    raft.ReadIndexRequest: lambda m: ("read_index_request", wire.PeerReadIndexRequest(context=m.context)),
    raft.ReadIndexResponse: lambda m: (
        "read_index_response",
        wire.PeerReadIndexResponse(context=m.context, index=m.index),
    ),
}


def _vote_request(each: wire.PeerMessage, sender: ReplicaId, to: ReplicaId) -> raft.VoteRequest:
    body = each.vote_request
    return raft.VoteRequest(
        sender, to, each.term, body.last_index, body.last_term, body.pre_vote, body.transfer
    )


def _append_response(each: wire.PeerMessage, sender: ReplicaId, to: ReplicaId) -> raft.AppendResponse:
    body = each.append_response
    return raft.AppendResponse(
        sender,
        to,
        each.term,
        body.match_index,
        body.rejected,
        body.rejected_index,
        body.hint_index,
        body.hint_term,
    )


def _snapshot_ack(each: wire.PeerMessage, sender: ReplicaId, to: ReplicaId) -> raft.SnapshotAck:
    body = each.snapshot_ack
    return raft.SnapshotAck(sender, to, each.term, body.index, body.next_offset, body.installed)


_DECODERS: Final[Mapping[str, Callable[[wire.PeerMessage, ReplicaId, ReplicaId], raft.Message]]] = {
    "vote_request": _vote_request,
    "vote_response": lambda m, sender, to: raft.VoteResponse(
        sender, to, m.term, m.vote_response.pre_vote, m.vote_response.granted
    ),
    "append_request": _decode_append,
    "append_response": _append_response,
    "heartbeat_request": lambda m, sender, to: raft.HeartbeatRequest(
        sender, to, m.term, m.heartbeat_request.commit, m.heartbeat_request.round
    ),
    "heartbeat_response": lambda m, sender, to: raft.HeartbeatResponse(
        sender, to, m.term, m.heartbeat_response.round
    ),
    "timeout_now": lambda m, sender, to: raft.TimeoutNow(sender, to, m.term),
    "snapshot_chunk": _decode_chunk,
    "snapshot_ack": _snapshot_ack,
    "read_index_request": lambda m, sender, to: raft.ReadIndexRequest(
        sender, to, m.term, m.read_index_request.context
    ),
    "read_index_response": lambda m, sender, to: raft.ReadIndexResponse(
        sender, to, m.term, m.read_index_response.context, m.read_index_response.index
    ),
}


TERM: Final = wire.PeerMessage.TERM_FIELD_NUMBER
APPEND: Final = wire.PeerMessage.APPEND_REQUEST_FIELD_NUMBER
PREV_INDEX: Final = wire.PeerAppendRequest.PREV_INDEX_FIELD_NUMBER
PREV_TERM: Final = wire.PeerAppendRequest.PREV_TERM_FIELD_NUMBER
ENTRIES: Final = wire.PeerAppendRequest.ENTRIES_FIELD_NUMBER
COMMIT: Final = wire.PeerAppendRequest.COMMIT_FIELD_NUMBER
COMMIT_TERM: Final = wire.PeerAppendRequest.COMMIT_TERM_FIELD_NUMBER
ACKNOWLEDGED: Final = wire.PeerAppendRequest.ACKNOWLEDGED_FIELD_NUMBER
INDEX: Final = wire.PeerEntry.INDEX_FIELD_NUMBER
ENTRY_TERM: Final = wire.PeerEntry.TERM_FIELD_NUMBER
DATA: Final = wire.PeerEntry.DATA_FIELD_NUMBER
MEMBERSHIP: Final = wire.PeerEntry.MEMBERSHIP_FIELD_NUMBER


def append_parts(message: AppendRequest) -> list[bytes]:
    """Encode a `PeerMessage` as a list of byte strings. The data of entries is referenced, not copied."""
    parts = [number_field(PREV_INDEX, message.prev_index) + number_field(PREV_TERM, message.prev_term)]
    for entry in message.entries:
        _add(parts, entry)
    parts.append(
        number_field(COMMIT, message.commit)
        + number_field(COMMIT_TERM, message.commit_term)
        + number_field(ACKNOWLEDGED, message.acknowledged)
    )
    return [number_field(TERM, message.term) + message_head(APPEND, sum(map(len, parts))), *parts]


def _add(parts: list[bytes], entry: Entry) -> None:
    data = entry.data
    head = number_field(INDEX, entry.index) + number_field(ENTRY_TERM, entry.term)
    if data:
        head += message_head(DATA, len(data))
    membership = number_field(MEMBERSHIP, entry.membership is not None)
    parts += (message_head(ENTRIES, len(head) + len(data) + len(membership)) + head, data, membership)
