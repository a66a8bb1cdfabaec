"""A move is cancelled while the controllers refuse to close the streams of its source: the source
reopens the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_broker.partitions.handoff.handoff import Stage
from ponor_controller import operations as dispatch
from ponor_controller.kernel.decisions import Decision, Situation
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.nodes import WalKind
from ponor_rpc.errors import OperationError

from tests.scenarios.moving_world import MovingWorld


class RefusedCloses:
    """Refuses CloseStreams of every broker while `refusing`."""

    def __init__(self) -> None:
        self.refusing = True
        self.refused = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse within this context."""
        closes = dispatch.VALIDATORS["close_streams"]

        def validate(body: wire.CloseStreams, situation: Situation) -> Decision:
            if not self.refusing:
                return closes(body, situation)
            self.refused += 1
            raise OperationError(error_pb2.ERROR_CODE_OFFSET_MISMATCH, "refused by the scenario")

        with patch.object(dispatch, "VALIDATORS", {**dispatch.VALIDATORS, "close_streams": validate}):
            yield


@pytest.mark.parametrize("wal", WalKind)
def test_a_source_that_cannot_close_serves_again_when_its_move_is_cancelled(wal: WalKind) -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        assert (await world.produce(source, 2)).base_offset == 0
        assert await world.move(target) == [ErrorCode.NONE]
        await world.until(lambda: world.is_at(source, Stage.CLOSING) and closes.refused > 1)
        assert await world.move(None) == [ErrorCode.NONE]
        await world.until(lambda: world.handoff(source) is None, 10)
        assert (world.leader(), world.row().leader_epoch, world.moves()) == (source, 0, 0)
        assert (await world.produce(source)).base_offset == 2
        assert (await world.fetch(source)).high_watermark == 3
        asked = closes.refused
        await asyncio.sleep(30)
        assert closes.refused == asked, "requests are not repeated without limit"
        # The partition can move later, with all its data.
        closes.refusing = False
        assert await world.move(target) == [ErrorCode.NONE]
        await world.until(lambda: world.leader() == target and world.serves_somewhere())
        assert (await world.produce(target)).base_offset == 3
        assert (await world.end_offset(target))[1] == 4

    closes = RefusedCloses()
    with closes.on():
        MovingWorld(31, wal=wal).tell(story)


def test_a_source_that_moved_before_serving_opens_the_partition_after_a_cancellation() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        assert (await world.produce(source, 2)).base_offset == 0
        closes.refusing = False
        assert await world.move(target) == [ErrorCode.NONE]
        await world.until(lambda: world.leader() == target)
        store = world.store_of_faults()
        store.latency_s = (1.0, 1.0)  # the target reads what the source wrote, and is moved meanwhile
        closes.refusing = True
        assert await world.move(source, by=source) == [ErrorCode.NONE]
        await world.until(lambda: closes.refused > 1)
        assert world.services[target].partitions.get(world.topic_id, 0) is None
        store.latency_s = (0.005, 0.06)
        assert await world.move(None) == [ErrorCode.NONE]
        await world.until(world.serves_somewhere, 10)
        assert (world.leader(), world.moves()) == (target, 0)
        assert (await world.produce(target)).base_offset == 2
        asked = closes.refused
        await asyncio.sleep(30)
        assert closes.refused == asked, "requests are not repeated without limit"

    closes = RefusedCloses()
    with closes.on():
        MovingWorld(32).tell(story)
