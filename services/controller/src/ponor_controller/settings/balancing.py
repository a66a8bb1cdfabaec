"""Settings of the balancer: what a broker can carry, what counts as uneven, and how much may move at once.

What lives here: one frozen dataclass, a part of the controller's settings. Where the defaults come from: docs/operations/balancing.md.
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
        doc="How often the balancer looks at the brokers; when nothing changed since, it does no more than that.",
    )
    balance_threshold_percent: int = setting(
        20,
        minimum=5,
        maximum=1_000,
        unit="%",
        doc="Distance of a broker from the mean of all that makes the balancer act; it then goes on until nobody is further away than half of this.",
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
        doc="Moves of the balancer that are under way at once, in the whole cluster.",
    )
    balance_partition_cool_down_ms: int = setting(
        30_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="A partition that somebody or the balancer moved is left where it is for so long; where the balancer put it, only until brokers come or go.",
    )
    balance_broker_cool_down_ms: int = setting(
        5_000,
        minimum=0,
        maximum=3_600_000,
        unit="ms",
        doc="After a move of the balancer its two brokers are not judged by their traffic for so long: the next reports show what it did.",
    )
    balance_smoothing_ms: int = setting(
        5_000,
        minimum=0,
        maximum=600_000,
        unit="ms",
        doc="Time constant with which reported traffic is smoothed: a change shows for 63 % after this time; 0 takes every report as it is.",
    )
    balance_report_age_ms_max: int = setting(
        15_000,
        minimum=1_000,
        maximum=600_000,
        unit="ms",
        doc="A broker that reported traffic and then nothing for so long is not understood: no traffic is moved until it reports again.",
    )
    balance_reported_partitions_max: int = setting(
        2_000,
        minimum=1,
        maximum=50_000,
        unit="partitions",
        doc="Partitions of one report that are looked at, the busiest; the others count in its totals.",
    )
    balance_recent_moves_max: int = setting(
        200, minimum=1, maximum=10_000, unit="moves", doc="Moves that are remembered to be explained."
    )
    balance_wanted_load_percent: int = setting(
        70,
        minimum=1,
        maximum=100,
        unit="%",
        doc="How full brokers are to be at the most: ponor_brokers_wanted is the number that keeps them below.",
    )
    balance_scale_up_ms: int = setting(
        15_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="ponor_brokers_wanted rises after more were needed for so long: the start of a broker is work too, and calls for no other.",
    )
    balance_scale_down_ms: int = setting(
        600_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="ponor_brokers_wanted falls after fewer were enough for so long.",
    )
