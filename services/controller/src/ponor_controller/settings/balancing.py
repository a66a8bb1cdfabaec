"""Settings of the balancer: the capacity of a broker, what counts as uneven, how many partitions may move.

docs/operations/balancing.md explains the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Settings of the balancer; each field's `doc` describes it."""

    balance_interval_ms: int = setting(
        2_000,
        within=(100, 600_000),
        doc="Interval of the balancer's steps. A step without changed input does nothing.",
    )
    balance_threshold_percent: int = setting(
        20,
        within=(5, 1_000),
        doc="The balancer starts to move partitions when a broker differs from the mean by this "
        "much. It stops when all brokers are within half of it.",
    )
    balance_in_bytes_per_s_min: int = setting(
        256 * KIB,
        within=(1, 1024 * MIB),
        doc="Differences from the mean below this rate of produced bytes are ignored.",
    )
    balance_out_bytes_per_s_min: int = setting(
        512 * KIB,
        within=(1, 1024 * MIB),
        doc="Differences from the mean below this rate of fetched bytes are ignored.",
    )
    balance_partitions_min: int = setting(
        1,
        within=(1, 10_000),
        unit="partitions",
        doc="Differences from the mean below this number of led partitions are ignored.",
    )
    balance_capacity_in_bytes_per_s: int = setting(
        100 * MIB, within=(1, None), doc="Rate of produced bytes that one broker can handle."
    )
    balance_capacity_out_bytes_per_s: int = setting(
        400 * MIB, within=(1, None), doc="Rate of fetched bytes that one broker can handle."
    )
    balance_capacity_partitions: int = setting(
        4_000, within=(1, None), unit="partitions", doc="Partitions that one broker can lead."
    )
    balance_moves_in_flight_max: int = setting(
        64, within=(1, 10_000), unit="moves", doc="Moves of the balancer in progress, in the whole cluster."
    )
    balance_partition_cool_down_ms: int = setting(
        30_000,
        within=(0, 86_400_000),
        doc="After a move, the balancer leaves the partition where it is for this time. A change "
        "of the set of brokers ends the cool-down of moves that the balancer started.",
    )
    balance_broker_cool_down_ms: int = setting(
        5_000,
        within=(0, 3_600_000),
        doc="After a move, the balancer ignores the traffic of both brokers for this time, until "
        "new reports show the effect.",
    )
    balance_smoothing_ms: int = setting(
        5_000,
        within=(0, 600_000),
        doc="Time constant of the smoothing of reported traffic. A change has 63 % of its effect "
        "after this time. 0: no smoothing.",
    )
    balance_report_age_ms_max: int = setting(
        15_000,
        within=(1_000, 600_000),
        doc="If a broker with traffic sends no report for this time, the balancer moves no "
        "traffic until the next report.",
    )
    balance_reported_partitions_max: int = setting(
        2_000,
        within=(1, 50_000),
        unit="partitions",
        doc="Partitions of one load report that are read individually, the busiest first. The "
        "others count only in the totals.",
    )
    balance_recent_moves_max: int = setting(
        200, within=(1, 10_000), unit="moves", doc="Recent moves kept for explanations."
    )
    balance_wanted_load_percent: int = setting(
        70,
        within=(1, 100),
        doc="Highest intended load of a broker. ponor_brokers_wanted is the number of brokers that keeps the"
        " load of each broker below it.",
    )
    balance_scale_up_ms: int = setting(
        15_000,
        within=(0, 86_400_000),
        doc="ponor_brokers_wanted rises after more brokers were needed for this time, because the start of a"
        " broker itself causes load.",
    )
    balance_scale_down_ms: int = setting(
        600_000,
        within=(0, 86_400_000),
        doc="ponor_brokers_wanted falls after fewer brokers were sufficient for this time.",
    )
