"""Settings of a compactor. What is worth compacting are the controller's settings `compaction_*`."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactorSettings:
    """What an operator may choose; see each field's `doc`."""

    compaction_budget_bytes: int = setting(
        64 * MIB,
        minimum=8 * MIB,
        maximum=64 * 1024 * MIB,
        unit="bytes",
        doc="Bytes of data that a compactor holds in memory at most. The process itself and its calls to the store need up to 160 MiB more.",
    )
    compactor_source_bytes_max: int = setting(
        4096 * MIB,
        minimum=1,
        maximum=1024 * 1024 * MIB,
        unit="bytes",
        doc="Most bytes of the objects that one task replaces; the controller has a bound of its own.",
    )
    compactor_split_size_bytes: int = setting(
        8 * MIB,
        minimum=1,
        maximum=5 * 1024 * MIB,
        unit="bytes",
        doc="From this size on, what a task holds of one stream becomes an object of its own.",
    )
    compactor_part_size_bytes: int = setting(
        16 * MIB,
        minimum=5 * MIB,
        maximum=1024 * MIB,
        unit="bytes",
        doc="Wanted size of a part of an upload in parts; an object with no more data is one put. Less where the budget is.",
    )
    compactor_lease_ttl_ms: int = setting(
        30_000,
        minimum=300,
        maximum=600_000,
        unit="ms",
        doc="Life of a task's lease, renewed three times in it: how long a task waits when its compactor died.",
    )
    compactor_prepared_ttl_ms: int = setting(
        21_600_000,
        minimum=1_000,
        maximum=86_400_000,
        unit="ms",
        doc="Life of the object ids of a task: longer than any task takes. What a dead compactor wrote is deleted after it.",
    )
    compactor_poll_interval_ms_min: int = setting(
        500,
        minimum=10,
        maximum=60_000,
        unit="ms",
        doc="First pause when nothing is worth doing.",
    )
    compactor_poll_interval_ms_max: int = setting(
        15_000,
        minimum=10,
        maximum=600_000,
        unit="ms",
        doc="Longest pause: while nothing is worth doing, each is about twice the one before; also the pause after the store failed.",
    )
    compactor_bytes_per_s_min: int = setting(
        48 * MIB,
        minimum=1,
        maximum=1024 * 1024 * MIB,
        unit="bytes/s",
        doc="Bytes that one compactor reads and writes in a second, added up, while it keeps up; every two minutes of work without a pause double it, up to both bounds together.",
    )
    compactor_read_bytes_per_s_max: int = setting(
        128 * MIB,
        minimum=1,
        maximum=1024 * 1024 * MIB,
        unit="bytes/s",
        doc="Bytes that one compactor reads from the store in a second.",
    )
    compactor_write_bytes_per_s_max: int = setting(
        128 * MIB,
        minimum=1,
        maximum=1024 * 1024 * MIB,
        unit="bytes/s",
        doc="Bytes that one compactor writes to the store in a second. Copies made by the store itself are requests without bytes.",
    )
    compactor_requests_per_s_max: int = setting(
        200,
        minimum=1,
        maximum=1_000_000,
        unit="requests/s",
        doc="Requests that one compactor makes to the store in a second.",
    )
