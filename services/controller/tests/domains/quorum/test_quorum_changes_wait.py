"""Changes that wait for room in the log are validated when there is room, not before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.kernel.commit_waiters import CommitWaiters
from ponor_controller.server.quorum_service import QuorumService

from services.controller.tests.ledger import Ledger


class FullProposer:
    """A proposer without room until `opened` is set."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.opened = asyncio.Event()
        self.proposed: list[str | None] = []
        self.commits = CommitWaiters(ledger.image)

    @property
    def view(self) -> Any:
        return self._ledger.view

    @property
    def last_index(self) -> int:
        return self._ledger.image.index

    async def room(self) -> None:
        """Wait until it is opened."""
        await self.opened.wait()

    def propose(self, records: Sequence[records_pb2.Record]) -> int:
        """Apply immediately: a record that was validated too early fails here, as it would at every
        controller.
        """
        self.proposed += [record.WhichOneof("kind") for record in records]
        self._ledger.apply(list(records))
        return self.last_index


async def test_two_confirmations_that_wait_for_room_confirm_once() -> None:
    ledger = Ledger()
    ledger.register(0)
    raised = records_pb2.IncarnationRaised(incarnation=1)
    ledger.apply([records_pb2.Record(incarnation_raised=raised)])
    proposer = FullProposer(ledger)

    async def read_index() -> int:
        return proposer.last_index

    leading = SimpleNamespace(is_leading=True, read_index=read_index)
    service = QuorumService(cast(Any, None), cast(Any, leading), cast(Any, proposer))
    request = wire.QuorumRequest(confirm_incarnation=wire.ConfirmIncarnation(incarnation=1))
    asking = [asyncio.create_task(service._answer(request.SerializeToString())) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    proposer.opened.set()
    answers = [wire.QuorumResponse.FromString(each) for each in await asyncio.gather(*asking)]
    assert all(each.HasField("done") for each in answers)
    assert proposer.proposed == ["incarnation_confirmed"]
