"""A log that fills its window in memory: proposals wait for a snapshot, and a restart accepts a log
that older settings left.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from dataclasses import replace

import pytest
from ponor_controller import controller as controller_module
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_format import SnapshotHeader
from ponor_raft.limits import RaftLimits
from ponor_runtime.clock import Clock
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import SETTINGS, QuorumRig, Writer

WINDOW = 400
MANY = replace(SETTINGS, snapshot_batches=1_000)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with a window smaller than the interval between two snapshots of `MANY`."""
    limits_of = controller_module.raft_limits

    def limits(settings: object) -> RaftLimits:
        return replace(limits_of(settings), window_entries_max=WINDOW)  # type: ignore[arg-type]

    monkeypatch.setattr(controller_module, "raft_limits", limits)


def test_settings_that_keep_many_batches_widen_the_window() -> None:
    limits = controller_module.raft_limits(
        replace(SETTINGS, snapshot_batches=10_000_000, snapshot_bytes=1 << 31)
    )
    assert limits.window_entries_max > 20_000_000
    assert limits.window_bytes_max > 1 << 32


@pytest.mark.usefixtures("narrow")
def test_a_full_window_triggers_a_snapshot() -> None:
    rig = QuorumRig(1, settings=MANY)
    writer = Writer(rig)

    async def story() -> None:
        rig.start()
        writer.process.start()
        await writer.until_written(3 * WINDOW)
        assert all(process.running for process in rig.processes)
        await rig.until_led()

    with rig.watching():
        rig.simulation.run(story())


class FullDisk:
    """Snapshots of all controllers fail while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.refused = 0
        write = RecordLog.write_snapshot

        async def refuse_or_write(
            log: RecordLog, header: SnapshotHeader, pieces: Iterable[bytes], clock: Clock
        ) -> SnapshotHeader:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, "no space left on device")
            return await write(log, header, pieces, clock)

        monkeypatch.setattr(RecordLog, "write_snapshot", refuse_or_write)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("restarted", [False, True])
def test_proposals_wait_while_snapshots_fail_and_continue_afterwards(
    monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    disk = FullDisk(monkeypatch)
    rig = QuorumRig(2, settings=SETTINGS)
    writer = Writer(rig)

    async def story() -> None:
        rig.start()
        writer.process.start()
        await wait_until(lambda: any(not each.proposer.has_room for each in rig.alive()), timeout_s=120)
        before = len(writer.acknowledged)
        await asyncio.sleep(30)
        assert all(process.running for process in rig.processes), "a full disk ends no process"
        leader = await rig.until_led()
        assert (
            len(leader.driver.node.entries(leader.driver.node.first_index, leader.driver.node.last_index))
            <= WINDOW
        )
        assert len(writer.acknowledged) <= before + 10, "proposals wait"
        if restarted:
            for process in rig.processes:
                process.crash()
            await asyncio.sleep(1)
            for process in rig.processes:
                process.start()
            await rig.until_led()
        disk.full = False
        await writer.until_written(3 * WINDOW)
        writer.check(await rig.until_led())

    with rig.watching():
        rig.simulation.run(story())
    assert disk.refused > 0


def test_a_restart_accepts_a_log_longer_than_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """All voters restart with more entries than their window holds, and the commit index covers none of
    them.
    """
    rig = QuorumRig(3, settings=MANY)
    writer = Writer(rig)

    async def story() -> None:
        rig.start()
        writer.process.start()
        await writer.until_written(WINDOW)
        for process in rig.processes:
            process.crash()
        await asyncio.sleep(1)
        limits_of = controller_module.raft_limits
        monkeypatch.setattr(
            controller_module,
            "raft_limits",
            lambda settings: replace(limits_of(settings), window_entries_max=50),
        )
        for process in rig.processes:
            process.start()
        await writer.until_written(200)
        writer.check(await rig.until_led())

    with rig.watching():
        rig.simulation.run(story())
