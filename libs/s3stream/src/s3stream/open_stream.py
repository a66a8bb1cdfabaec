"""State of a stream that is open at this node: offsets, cached records, upload hook.

Plain state without behaviour, shared by `stream` (the callers' interface), `storage` (acknowledges appends) and
`sealing` (runs hooks).
"""

from __future__ import annotations

from collections.abc import Callable

from ponor_runtime.identity import StreamEpoch, StreamId

from s3stream.log_cache import StreamChain
from s3stream.ports import StreamState


class OpenStream:
    """The offsets: committed ≤ confirmed ≤ next.

    Readable from `start_offset` on, in objects below `committed_offset`, durable and cached below `confirmed_offset`, given to appends
    below `next_offset`.
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
        """Own data was appended since the last run of the hook."""
        self.seen_in_image = False
        """The image has shown this stream: from then on its absence means that it was deleted, before that only that the image lags."""
