"""The recoverer ends a recovery only when the log's row shows that it is over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ponor_broker.storage import recoverer as module
from ponor_broker.storage.recoverer import Recoverer
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation
from s3stream.errors import WalNotHeldError
from s3stream.recovery import NOTHING_RECOVERED, RecoveryReport
from s3stream.settings import StorageSettings

OWNER, MINE, OTHER = NodeId(7), NodeId(8), NodeId(9)
EPOCH = NodeEpoch(4)
ROW = WalRow(OWNER, EPOCH, 10, MINE, EPOCH, 1)


class Attempts:
    """Replaces `recover_wal`; refuses the first calls."""

    def __init__(self, image: MetadataImage, *, refusals: int, other_takes_over: bool) -> None:
        self.image = image
        self.refusals = refusals
        self.other_takes_over = other_takes_over
        self.calls = 0

    async def __call__(self, **_: object) -> RecoveryReport:
        self.calls += 1
        if self.calls <= self.refusals:
            if self.other_takes_over:
                self.image[WALS].put(ROW._replace(recoverer_id=OTHER, token=2))
            raise WalNotHeldError("not held")
        self.image[WALS].delete((OWNER, EPOCH))
        return NOTHING_RECOVERED


@pytest.mark.parametrize(("other_takes_over", "calls"), [(False, 4), (True, 1)])
def test_a_refused_recovery_is_retried_while_the_row_names_this_process(
    monkeypatch: pytest.MonkeyPatch, other_takes_over: bool, calls: int
) -> None:
    image = MetadataImage()
    image[WALS].put(ROW)
    attempts = Attempts(image, refusals=3, other_takes_over=other_takes_over)
    monkeypatch.setattr(module, "recover_wal", attempts)

    async def main(runtime: Runtime) -> None:
        node = SimpleNamespace(subscription=SimpleNamespace(image=image), node_id=MINE, epoch=EPOCH)
        ports: Any = SimpleNamespace(
            wals=SimpleNamespace(name_of=lambda *_: None), store=None, streams=None, objects=None
        )
        tasks = BackgroundTasks(runtime.fail_stop)
        recoverer = Recoverer(
            runtime,
            StorageSettings(),
            cast(Any, node),
            ports,
            tasks,
            in_flight_max=1,
            bytes_max=1 << 20,
        )
        running = asyncio.create_task(recoverer.run())
        await runtime.clock.sleep(30)
        running.cancel()
        await tasks.close()

    simulation = Simulation(1)
    broker = simulation.process("broker", main)

    async def story() -> None:
        broker.start()
        await wait_until(lambda: not broker.running)

    simulation.run(story())
    assert attempts.calls == calls
