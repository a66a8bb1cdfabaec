"""The survey of open transactions that keep the last stable offset back."""

from __future__ import annotations

from ponor_broker.partitions.stable_offset_lag import PARTITIONS_PER_STEP, StableOffsetLag
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import at_once

from services.broker.tests.coordination_kit import VirtualClock
from services.broker.tests.partitions.transactions.transaction_kit import TransactionRig


def gauges(telemetry: Telemetry) -> tuple[float, float, float]:
    """Open transactions, the largest lag, and the age of the oldest."""
    names = (
        "ponor_partition_open_transactions",
        "ponor_partition_stable_offset_max_lag",
        "ponor_partition_open_transaction_age_seconds",
    )
    ((_, opened),), ((_, lag),), ((_, age),) = (telemetry.gauges(name) for name in names)
    return opened, lag, age


async def test_lag_and_age_follow_the_transaction_that_holds_the_offset() -> None:
    rigs = TransactionRig(), TransactionRig()
    partitions = [await rig.open() for rig in rigs]
    clock, telemetry = VirtualClock(), Telemetry()
    lag = StableOffsetLag(lambda: partitions, clock, telemetry)
    at_once(lag.survey())
    assert gauges(telemetry) == (0, 0, 0)

    rigs[0].append(1, count=5)
    rigs[0].append(2, count=2)
    rigs[1].append(3, count=3)
    for partition in partitions:
        await partition.drained()
    at_once(lag.survey())
    assert gauges(telemetry) == (3, 7, 0)

    await clock.pass_ms(4_000)
    await rigs[0].end(1, commits=True)
    at_once(lag.survey())
    assert gauges(telemetry) == (2, 3, 4), "the other partition has the older transaction now"

    await rigs[1].end(3, commits=False)
    await clock.pass_ms(1_000)
    at_once(lag.survey())
    assert gauges(telemetry) == (1, 3, 1)
    await rigs[0].end(2, commits=True)
    at_once(lag.survey())
    assert gauges(telemetry) == (0, 0, 0)


async def test_a_survey_has_short_steps() -> None:
    rig = TransactionRig()
    partition = await rig.open()
    many = [partition] * (3 * PARTITIONS_PER_STEP)
    lag = StableOffsetLag(lambda: many, VirtualClock(), Telemetry())
    assert len(list(lag.survey())) == 3
