"""The directory of one of three voters is replaced by an older copy, and the leader dies before the
voter has caught up.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from services.controller.tests.consensus.test_quorum_in_simulation import ALL, cut_off, tell
from services.controller.tests.quorum_rig import DATA, QuorumRig, Writer


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_entries_are_not_voted_away(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The third voter was cut off meanwhile, so only the dead leader has the newest records. No
    leader is elected before it returns.
    """

    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader: Any = await rig.until_led()
        name, laggard = [each for each in ALL if each != leader.name]
        processes = {process.name: process for process in rig.processes}
        older = copy.deepcopy(processes[name].disk.state)
        cut_off(rig, laggard)
        await writer.until_written(400)
        before = rig.lives[name]
        processes[name].crash(power_loss=True)
        processes[name].disk.state = older
        processes[name].start()
        while rig.lives[name] is before or not rig.lives[name].driver.node.required[1] > 300:
            await asyncio.sleep(0.000_1)
        assert rig.lives[name].driver.node.last_index < 200, "it has not caught up"
        assert leader.driver.leading
        processes[leader.name].crash(power_loss=True)
        rig.simulation.network.heal()
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not [each for each in rig.alive() if each.driver.node.is_leader]
        processes[leader.name].start()

    tell(seed, story, loses_entries=True)
    (warning,) = [each.getMessage() for each in caplog.records if "older copy" in each.getMessage()]
    assert warning.startswith(f"{DATA} has the log up to index ")
    assert "lost acknowledged entries" in warning
