"""State of a stream that is open on this node: offsets, cached records, upload hook.

Shared by `stream` (the interface for callers), `storage` (acknowledges appends) and `sealing` (runs
hooks).
"""

from __future__ import annotations

from collections.abc import Callable

from ponor_runtime.identity import StreamEpoch, StreamId

from s3stream.log_cache import StreamChain
from s3stream.ports import StreamState


class OpenStream:
    """Offsets of an open stream: committed ≤ confirmed ≤ next.

    Data is readable from `start_offset` on: below `committed_offset` from objects, and from there to
    `confirmed_offset` from the log cache. Offsets below `next_offset` are assigned to appends.
    """

    __slots__ = (
        "awaits_hook",
        "chain",
        "committed_offset",
        "confirmed_offset",
        "epoch",
        "next_offset",
        "seen_in_image",
        "start_offset",
        "stream_id",
        "upload_hook",
    )

    def __init__(self, state: StreamState) -> None:
        self.stream_id: StreamId = state.stream_id
        self.epoch: StreamEpoch = state.epoch
        self.start_offset = state.start_offset
        self.committed_offset = state.end_offset
        self.confirmed_offset = state.end_offset
        self.next_offset = state.end_offset
        self.chain = StreamChain(state.stream_id)
        self.upload_hook: Callable[[], bool] | None = None
        self.awaits_hook = False
        """Whether a caller other than a hook appended data since the last run of this stream's hook."""
        self.seen_in_image = False
        """Whether the image has ever contained this stream. If so, its absence means that it was deleted;
        otherwise absence only means that the image lags."""
