"""Three controllers under crashes, partitions, slow and damaged disks, long absences and
replacement. In virtual time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from ponor_controller.consensus import window_compaction
from ponor_controller.consensus.errors import RecordLogCorruptError
from ponor_controller.consensus.members import members_of_rows
from ponor_controller.domains.quorum.raft_quorum import RaftQuorum
from ponor_metadata.nouns.quorum import QUORUM
from ponor_raft.errors import NotLeaderError
from ponor_raft.ready import Role
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_simulation.disk import DiskSpeed
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import DATA, QuorumRig, Writer, member

Story: TypeAlias = Callable[[QuorumRig, Writer], Awaitable[None]]
ALL = ("c0", "c1", "c2")


def tell(seed: int, story: Story, *, blank: int = 0, loses_entries: bool = False) -> QuorumRig:
    """Run a story on a quorum under writes. At its end every running controller must have
    everything acknowledged.

    `loses_entries`: a disk loses synced data, so a heartbeat may name a commit index beyond its
    log.
    """
    never = [why for why in NEVER if not (loses_entries and why == "commit beyond the log")]
    rig = QuorumRig(seed, blank=blank)
    writer = Writer(rig)

    async def scenario() -> None:
        for process in rig.processes[: len(rig.members)]:
            process.start()
        writer.process.start()
        await writer.until_written(30)
        await story(rig, writer)
        await writer.until_written(30)
        writer.process.crash()
        await rig.until_equal()
        for controller in rig.alive():
            writer.check(controller)
            assert not [why for why in controller.driver.node.dropped if why in never]

    with rig.watching():
        rig.simulation.run(scenario())
    return rig


NEVER = (
    "conflict with a committed entry",
    "second leader in one term",
    "commit beyond the log",
    "acknowledgement beyond the log",
)


def cut_off(rig: QuorumRig, name: str) -> None:
    """Cut one controller off from the others."""
    for other in ALL:
        if other != name:
            rig.simulation.network.cut(name, other)
            rig.simulation.network.cut(other, name)


@pytest.mark.parametrize("seed", range(3))
def test_repeated_power_losses_of_leaders_lose_nothing_acknowledged(seed: int) -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        for _ in range(4):
            process = rig.process_of(await rig.until_led())
            process.crash(power_loss=True)
            await writer.until_written(30)
            process.start()

    rig = tell(seed, story)
    assert len(rig.leaders) >= 4


def test_a_power_loss_of_all_three_loses_nothing_acknowledged() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        for _ in range(3):
            await writer.until_written(50)
            for process in rig.processes:
                process.crash(power_loss=True)
            rig.start()

    tell(10, story)


@pytest.mark.parametrize("seed", [20, 21])
def test_an_isolated_leader_steps_down_and_its_proposals_are_dropped(seed: int) -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        old = await rig.until_led()
        name = rig.process_of(old).name
        committed = old.image.index
        cut_off(rig, name)
        new = await rig.until_led(other_than=old)
        await wait_until(lambda: not old.driver.leading, timeout_s=5)
        assert old.proposer.view.proposed_batches == 0
        assert old.proposer.view.touched_rows == 0
        assert old.proposer.in_flight == 0
        with pytest.raises(NotLeaderError):
            await old.consensus.read_index()
        await writer.until_written(40)
        assert old.image.index < new.image.index
        assert old.image.index >= committed
        rig.simulation.network.heal()

    tell(seed, story)


def test_a_long_absent_follower_gets_a_snapshot_despite_a_power_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that entries in a snapshot are released in several turns.
    monkeypatch.setattr(window_compaction, "COMPACTED_AT_ONCE", 7)

    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader = await rig.until_led()
        away = next(process for process in rig.processes if process is not rig.process_of(leader))
        away.crash(power_loss=True)
        await writer.until_written(400)
        assert leader.driver.node.first_index > 100, "the missed entries are not in memory anymore"
        away.start()
        await wait_until(lambda: rig.lives[away.name].image.index >= 400, timeout_s=30)
        back = rig.lives[away.name]
        assert back.subscriptions is not None
        away.crash(power_loss=True)
        away.start()
        await rig.until_equal(ALL)
        newest = rig.lives[away.name]._log.newest
        assert newest is not None
        assert newest.received or newest.index > 300

    tell(30, story)


def test_leadership_is_transferred_without_an_election_timeout() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader = await rig.until_led()
        await wait_until(lambda: leader.peers.connected_count == 2)
        clock = rig.simulation.loop.time
        target = leader.consensus.most_advanced_voter()
        began = clock()
        await leader.consensus.transfer(NodeId(target.node_id))
        await wait_until(
            lambda: any(each.driver.leading for each in rig.alive() if each is not leader), timeout_s=5
        )
        new = await rig.until_led(other_than=leader)
        assert new.driver.node.own == target
        assert clock() - began < 0.3, "in virtual time"
        assert leader.consensus.leader_address() == new.addresses.service_address(target)

    tell(40, story)


def test_a_leader_with_a_hanging_disk_is_replaced() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader = await rig.until_led()
        disk = rig.process_of(leader).disk
        healthy, disk.speed = disk.speed, DiskSpeed(sync_s=(8.0, 9.0))
        await rig.until_led(other_than=leader)
        assert leader.driver.node.role is not Role.LEADER
        await writer.until_written(30)
        disk.speed = healthy
        await asyncio.sleep(10)

    tell(50, story)


def test_a_leader_with_a_full_disk_is_replaced_and_returns_when_space_is_freed() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader = await rig.until_led()
        process = rig.process_of(leader)
        process.disk.capacity_bytes = 0
        await rig.until_led(other_than=leader)
        await writer.until_written(100)
        assert process.running, "it waits for space on the disk"
        process.disk.capacity_bytes = None
        await asyncio.sleep(20)

    tell(55, story)


def test_a_damaged_log_is_refused_and_the_others_keep_everything() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        leader = await rig.until_led()
        damaged = next(process for process in rig.processes if process is not rig.process_of(leader))
        damaged.crash()
        names = damaged.disk.state.names(DATA / "log")
        segment = DATA / "log" / min(name for name in names if name.startswith("segment-"))
        damaged.disk.flip_bit(segment, 600, 3)
        damaged.start()
        await wait_until(lambda: damaged.failure is not None)
        assert isinstance(damaged.failure, RecordLogCorruptError)
        assert segment.name in str(damaged.failure)

    tell(60, story)


def test_all_three_machines_are_replaced_one_by_one_under_load() -> None:
    async def story(rig: QuorumRig, writer: Writer) -> None:
        for number in range(3):
            await _replace(rig, number, 3 + number)
            await writer.until_written(20)
            rig.processes[number].crash(power_loss=True)
        leader = await rig.until_led()
        names = [each.node_id - member(0).node_id for each in members_of_rows(leader.image[QUORUM])]
        assert names == [3, 4, 5]
        assert all(each.voter for each in members_of_rows(leader.image[QUORUM]))

    tell(70, story, blank=3)


async def _replace(rig: QuorumRig, old: int, new: int) -> None:
    """A blank controller joins and is promoted; another one is removed."""
    blank = rig.processes[new]
    blank.start()
    await wait_until(lambda: blank.name in rig.ready)
    learner = member(new, voter=False, directory=uuid.UUID(rig.ready[blank.name]["directory_id"]).int)
    gone = rig.members[old].node_id
    await _change(rig, lambda control: control.add_learner(learner))
    await wait_until(lambda: blank.name in rig.lives, timeout_s=10)
    await _change(rig, lambda control: control.promote(learner.node_id))
    await _change(rig, lambda control: control.remove(gone, b""))


async def _change(rig: QuorumRig, change: Callable[[RaftQuorum], Awaitable[int]]) -> None:
    """Repeat a request at the leader until it succeeds, as an operator does."""
    while True:
        leader = await rig.until_led()
        try:
            await change(leader.control)
        except OperationError:
            await asyncio.sleep(0.2)
        else:
            return
