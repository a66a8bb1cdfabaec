"""Streams that exist for a moment, and the history of all answers about them: registers with
"there" or "gone".

A request to close a stream that the caller does not own changes nothing, so its refusal acts as a read. A
deposed controller that has not detected its deposition might answer the request from an old image.
`histories.linearizability` decides whether one order of all operations explains the answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.session import SessionClient
from ponor_rpc.errors import OperationError

from ponor_cluster_simulation.histories.operation import Operation

THERE: Final = "there"
GONE: Final = "gone"
NEWEST: Final = 2
"""Number of the newest streams that reads choose from."""


@dataclass(slots=True)
class ShortLivedStreams:
    """The streams that the processes of a run share.

    Attributes:
        history: one register per created stream.
    """

    history: list[Operation] = field(default_factory=list)
    _newest: list[int] = field(default_factory=list)
    _owners: dict[int, str] = field(default_factory=dict)

    async def make(self, process: str, session: SessionClient) -> None:
        """Create a stream. No process can read it before the answer with its id."""
        called = _now()
        request = wire.CreateStreams(streams=[wire.StreamTags()])
        result = await session.submit(wire.Operation(create_streams=request))
        stream_id = result.streams_created.stream_ids[0]
        self._note(process, stream_id, "write", THERE, called)
        self._owners[stream_id] = process
        self._newest = [*self._newest, stream_id][-NEWEST:]

    async def ask(self, process: str, session: SessionClient, lot: int) -> None:
        """Read one of the newest streams."""
        if not self._newest:
            return
        stream_id, called = self._newest[lot % len(self._newest)], _now()
        closing = wire.CloseStreams(streams=[wire.StreamState(stream_id=stream_id, stream_epoch=0)])
        try:
            await session.submit(wire.Operation(close_streams=closing))
        except OperationError as refused:
            is_gone = refused.code == error_pb2.ERROR_CODE_STREAM_NOT_FOUND
            self._note(process, stream_id, "read", GONE if is_gone else THERE, called)
        else:
            raise AssertionError(f"stream {stream_id} was closed, but no process had opened it")

    async def end(self, process: str, session: SessionClient) -> None:
        """Delete a stream that this process created."""
        stream_id = next((each for each in self._newest if self._owners.get(each) == process), None)
        if stream_id is None:
            return
        del self._owners[stream_id]
        called = _now()
        self.history.append(Operation(process, str(stream_id), "write", GONE, called, None))
        unknown = self.history[-1]
        request = wire.DeleteStreams(stream_ids=[stream_id])
        await session.submit(wire.Operation(delete_streams=request))
        self.history.remove(unknown)
        self._note(process, stream_id, "write", GONE, called)

    def _note(self, process: str, stream_id: int, kind: str, value: Any, called: float) -> None:
        self.history.append(Operation(process, str(stream_id), kind, value, called, _now()))


def _now() -> float:
    """Virtual time, because the clocks of machines drift."""
    return asyncio.get_running_loop().time()
