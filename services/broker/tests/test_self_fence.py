"""When a broker stops trusting what it knows."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.self_fence import SelfFence
from ponor_kafka.errors import ErrorCode
from ponor_runtime.system import SystemClock

from services.broker.tests.fetch_rig import FetchRig


class Watched:
    """A fence with its two clocks in the test's hand."""

    def __init__(self) -> None:
        self.staleness_ms: int | None = 0
        self.silence_ms: int | None = 0
        self.told: list[bool] = []
        self.fence = SelfFence(
            SystemClock(),
            9_000,
            staleness_ms=lambda: self.staleness_ms,
            silence_ms=lambda: self.silence_ms,
            changed=self.told.append,
        )

    def look(self, staleness_ms: int | None, silence_ms: int | None) -> list[bool]:
        self.staleness_ms, self.silence_ms = staleness_ms, silence_ms
        self.fence.look()
        return self.told


def test_either_clock_lets_it_fall_and_both_lift_it() -> None:
    watched = Watched()
    assert watched.look(9_000, 9_000) == []
    assert watched.look(9_001, 0) == [True]
    assert watched.look(0, 20_000) == [True]
    assert watched.look(100, 100) == [True, False]
    assert watched.look(0, 9_001) == [True, False, True]


def test_who_never_knew_anything_serves_nothing() -> None:
    assert Watched().look(None, 0) == [True]
    assert Watched().look(0, None) == [True]


async def test_a_fenced_broker_serves_no_partition_and_goes_on_where_it_was() -> None:
    async with FetchRig() as rig:
        await rig.create("t")
        partition = rig.partitions.find("t", 0)
        rig.partitions.fence(True)
        assert rig.partitions.get("t", 0) is None
        with pytest.raises(PartitionError, match="hears no controller") as refused:
            rig.partitions.find("t", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "clients look for another leader, and come back"
        )
        rig.partitions.fence(False)
        assert rig.partitions.find("t", 0) is partition
