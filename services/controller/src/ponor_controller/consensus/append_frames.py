"""An append in a frame, joined from its parts.

What lives here: the encoding of the one message that carries entries. A leader makes one for every follower and every batch; through protobuf's objects the bytes of an entry were
copied four times on their way, and the objects of a small one cost more than its bytes (docs/design/sessions-and-subscriptions.md#cost-of-an-operation).
"""

from __future__ import annotations

from typing import Final

from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_raft.entry import Entry
from ponor_raft.messages import AppendRequest
from ponor_rpc.joined_messages import message_head, number_field

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
    """An encoded `PeerMessage`, in parts; those of the entries' data are theirs."""
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
