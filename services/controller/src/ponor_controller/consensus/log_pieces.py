"""The pieces of a journal entry of the record log, byte by byte (docs/formats/controller-log.md).

Pieces that must become durable together share one journal entry. The journal detects damaged bytes;
this module rejects pieces that were written incorrectly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import DIRECTORY_ID_BYTES, ReplicaId

from ponor_controller.consensus.members import membership_in

KIND_HARD_STATE: Final = 1
KIND_ENTRY: Final = 2
KIND_BEGIN: Final = 3
FLAG_MEMBERSHIP: Final = 1
HARD_STATE: Final = Struct(f">BQBi{DIRECTORY_ID_BYTES}sQQ")
"""kind, term, whether there is a vote, node id and directory id of the candidate, term and index of the
floor.
"""
ENTRY: Final = Struct(">BQQBI")
"""kind, index, term, flags, size in bytes of the record batch that follows."""
BEGIN: Final = Struct(">BQQ")
"""kind, index, term."""
NO_REPLICA: Final = ReplicaId(0, bytes(DIRECTORY_ID_BYTES))


class PieceError(ValueError):
    """The bytes are not a valid sequence of pieces; the message names the reason."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A restart of the log: a snapshot replaced all earlier entries, and the log continues after (`index`,
    `term`).
    """

    index: int
    term: int


Piece: TypeAlias = HardState | Entry | Begin


def encode_hard_state(state: HardState) -> bytes:
    """Encode term, vote and floor."""
    to = state.voted_for
    return HARD_STATE.pack(KIND_HARD_STATE, state.term, to is not None, *(to or NO_REPLICA), *state.floor)


def encode_entry(entry: Entry) -> tuple[bytes, bytes]:
    """Encode an entry as two buffers: the header and the entry's data."""
    flags = FLAG_MEMBERSHIP if entry.membership is not None else 0
    return ENTRY.pack(KIND_ENTRY, entry.index, entry.term, flags, len(entry.data)), entry.data


def encode_begin(begin: Begin) -> bytes:
    """Encode a restart of the log."""
    return BEGIN.pack(KIND_BEGIN, begin.index, begin.term)


def decode_pieces(data: bytes) -> Iterator[Piece]:
    """Decode the pieces of one journal entry, in order.

    Raises:
        PieceError: the bytes are invalid.
    """
    position = 0
    while position < len(data):
        piece, position = _decode(data, position)
        yield piece


def _decode(data: bytes, position: int) -> tuple[Piece, int]:
    kind = data[position]
    layout = {KIND_HARD_STATE: HARD_STATE, KIND_ENTRY: ENTRY, KIND_BEGIN: BEGIN}.get(kind)
    if layout is None:
        raise PieceError(f"contains a piece of unknown kind {kind}")
    end = position + layout.size
    if end > len(data):
        raise PieceError("ends within a piece")
    if kind == KIND_HARD_STATE:
        _, term, voted, node_id, directory_id, *floor = HARD_STATE.unpack_from(data, position)
        voted_for = ReplicaId(node_id, directory_id) if voted else None
        return HardState(term, voted_for, (floor[0], floor[1])), end
    if kind == KIND_BEGIN:
        _, index, term = BEGIN.unpack_from(data, position)
        return Begin(index, term), end
    _, index, term, flags, size_bytes = ENTRY.unpack_from(data, position)
    body = data[end : end + size_bytes]
    if len(body) != size_bytes:
        raise PieceError("ends within a record batch")
    try:
        membership = membership_in(body) if flags & FLAG_MEMBERSHIP else None
    except DecodeError as error:
        raise PieceError(f"contains bytes that are not a record batch ({error})") from error
    return Entry(index, term, body, membership), end + size_bytes
