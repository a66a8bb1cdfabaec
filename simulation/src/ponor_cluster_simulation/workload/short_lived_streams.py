"""Streams that live for a moment, and what everybody was told of them: one history of registers that say "there" or "gone".

What lives here: the history and three operations. To ask for a stream that one does not own changes nothing, so the refusal is a read; a controller that was deposed and does not know it yet would answer
it from an image that others have left behind. Whether one order of everything explains all answers is decided by `histories.linearizability`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.session import SessionClient
from ponor_rpc.errors import OperationError

from ponor_cluster_simulation.histories.operation import Operation

THERE: Final = "there"
GONE: Final = "gone"
NEWEST: Final = 2
"""So many of the newest are asked for."""


@dataclass(slots=True)
class ShortLivedStreams:
    """What the processes of a run share.

    Attributes:
        history: a register for each stream that was made.
    """

    history: list[Operation] = field(default_factory=list)
    _newest: list[int] = field(default_factory=list)
    _owners: dict[int, str] = field(default_factory=dict)

    async def make(self, process: str, session: SessionClient) -> None:
        """Make one. Its id is nobody's before the answer, so nobody can have asked for it."""
        called = _now()
        request = wire.CreateStreams(streams=[wire.StreamTags()])
        result = await session.submit(wire.Operation(create_streams=request))
        stream_id = result.streams_created.stream_ids[0]
        self._note(process, stream_id, "write", THERE, called)
        self._owners[stream_id] = process
        self._newest = [*self._newest, stream_id][-NEWEST:]

    async def ask(self, process: str, session: SessionClient, lot: int) -> None:
        """Ask for one of the newest."""
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
            raise AssertionError(f"stream {stream_id} was closed, and nobody ever opened it")

    async def end(self, process: str, session: SessionClient) -> None:
        """Delete one that this process made."""
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
    """True time: clocks of machines drift."""
    return asyncio.get_running_loop().time()
