"""Age of the commit index at a controller that led before another one."""

from __future__ import annotations

import asyncio

import pytest
from ponor_controller.controller import Controller

from services.controller.tests.quorum_rig import QuorumRig


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_isolated_deposed_leader_reports_since_when_it_may_be_behind(seed: int, paused: bool) -> None:
    """Before, it reported 0 until it stepped down: for an election timeout, and again after a pause."""
    rig = QuorumRig(seed)
    led_after: list[bool] = []

    def age_ms(controller: Controller) -> int:
        return controller.leadership.commit_age_ms

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        rig.start()
        old = await rig.until_led()
        await asyncio.sleep(1)
        assert age_ms(old) < 500
        process = rig.process_of(old)
        if paused:
            process.pause()
        for other in {"c0", "c1", "c2"} - {process.name}:
            rig.simulation.network.cut(process.name, other)
            rig.simulation.network.cut(other, process.name)
        new = await rig.until_led(other_than=old)
        deposed_s = loop.time()
        if paused:
            process.resume()
        for _ in range(150):
            await asyncio.sleep(0.01)
            led_after.append(old.driver.node.is_leader)
            assert age_ms(old) >= int((loop.time() - deposed_s) * 1000)
            assert age_ms(new) < 500
        rig.simulation.network.heal()
        await asyncio.sleep(3)
        assert max(age_ms(each) for each in rig.alive()) < 500

    with rig.watching():
        rig.simulation.run(scenario())
    assert any(led_after) or not paused, "for a while it believes to lead"
