"""Settings of the balancer: what a broker can carry, what counts as uneven, and how many partitions may move.

docs/operations/balancing.md explains the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """What an operator may choose; see each field's `doc`."""

    balance_interval_ms: int = setting(
        2_000,
        minimum=100,
        maximum=600_000,
        unit="ms",
        doc="Interval of the balancer's steps. A step without changed input does nothing.",
    )
    balance_threshold_percent: int = setting(
        20,
        minimum=5,
        maximum=1_000,
        unit="%",
        doc="Distance of a broker from the mean at which the balancer begins to move partitions. It stops when all brokers are within half of this.",
    )
    balance_in_bytes_per_s_min: int = setting(
        256 * KIB,
        minimum=1,
        maximum=1024 * MIB,
        unit="bytes/s",
        doc="Distance from the mean, in bytes produced, below which nothing is uneven.",
    )
    balance_out_bytes_per_s_min: int = setting(
        512 * KIB,
        minimum=1,
        maximum=1024 * MIB,
        unit="bytes/s",
        doc="Distance from the mean, in bytes fetched, below which nothing is uneven.",
    )
    balance_partitions_min: int = setting(
        1,
        minimum=1,
        maximum=10_000,
        unit="partitions",
        doc="Distance from the mean, in partitions led, below which nothing is uneven.",
    )
    balance_capacity_in_bytes_per_s: int = setting(
        100 * MIB, minimum=1, unit="bytes/s", doc="What one broker can take from producers."
    )
    balance_capacity_out_bytes_per_s: int = setting(
        400 * MIB, minimum=1, unit="bytes/s", doc="What one broker can give to consumers."
    )
    balance_capacity_partitions: int = setting(
        4_000, minimum=1, unit="partitions", doc="Partitions that one broker can lead."
    )
    balance_moves_in_flight_max: int = setting(
        64,
        minimum=1,
        maximum=10_000,
        unit="moves",
        doc="Moves of the balancer in progress in the whole cluster.",
    )
    balance_partition_cool_down_ms: int = setting(
        30_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="Cool-down of a partition after a move. A change of the set of brokers ends it if the balancer began the move.",
    )
    balance_broker_cool_down_ms: int = setting(
        5_000,
        minimum=0,
        maximum=3_600_000,
        unit="ms",
        doc="Time after a move of the balancer for which the traffic of its two brokers is ignored, until new reports show the effect.",
    )
    balance_smoothing_ms: int = setting(
        5_000,
        minimum=0,
        maximum=600_000,
        unit="ms",
        doc="Time constant of the smoothing of reported traffic: a change has 63 % of its effect after this time; 0 disables smoothing.",
    )
    balance_report_age_ms_max: int = setting(
        15_000,
        minimum=1_000,
        maximum=600_000,
        unit="ms",
        doc="If a broker with traffic does not report for this time, the balancer moves no traffic until it reports again.",
    )
    balance_reported_partitions_max: int = setting(
        2_000,
        minimum=1,
        maximum=50_000,
        unit="partitions",
        doc="Busiest partitions of one report that are read individually; the others count in its totals.",
    )
    balance_recent_moves_max: int = setting(
        200, minimum=1, maximum=10_000, unit="moves", doc="Recent moves kept for explanations."
    )
    balance_wanted_load_percent: int = setting(
        70,
        minimum=1,
        maximum=100,
        unit="%",
        doc="Highest intended load of a broker. ponor_brokers_wanted is the number of brokers that keeps all below it.",
    )
    balance_scale_up_ms: int = setting(
        15_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="ponor_brokers_wanted rises after more brokers were needed for this time, because the start of a broker itself causes load.",
    )
    balance_scale_down_ms: int = setting(
        600_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="ponor_brokers_wanted falls after fewer brokers were sufficient for this time.",
    )
