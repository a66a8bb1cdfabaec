"""Settings of a compactor. The controller's settings `compaction_*` define which objects are compacted."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactorSettings:
    """Settings of one compactor process; each field's `doc` gives its meaning."""

    compaction_budget_bytes: int = setting(
        64 * MIB,
        within=(8 * MIB, 64 * 1024 * MIB),
        doc="Maximum bytes of data in memory. The process itself and its calls to the store need up to 160"
        " MiB more.",
    )
    compactor_source_bytes_max: int = setting(
        4096 * MIB,
        within=(1, 1024 * 1024 * MIB),
        doc="Maximum total size of the objects that one task replaces; the controller has a limit too.",
    )
    compactor_split_size_bytes: int = setting(
        8 * MIB,
        within=(1, 5 * 1024 * MIB),
        doc="A stream with at least this much data in a task gets an object of its own.",
    )
    compactor_part_size_bytes: int = setting(
        16 * MIB,
        within=(5 * MIB, 1024 * MIB),
        doc="Target part size of multipart uploads; an object up to this size is a single put. Parts are"
        " smaller if compaction_budget_bytes is small.",
    )
    compactor_lease_ttl_ms: int = setting(
        30_000,
        within=(300, 600_000),
        doc="Duration of a task's lease. The compactor renews it three times per duration. After a compactor"
        " failed, its task waits at most this long.",
    )
    compactor_prepared_ttl_ms: int = setting(
        21_600_000,
        within=(1_000, 86_400_000),
        doc="Time until the reserved object ids of a task expire; no task may take longer. Objects that a"
        " failed compactor wrote are deleted afterwards.",
    )
    compactor_poll_interval_ms_min: int = setting(
        500, within=(10, 60_000), doc="First pause when there is no task."
    )
    compactor_poll_interval_ms_max: int = setting(
        15_000,
        within=(10, 600_000),
        doc="Longest pause. Pauses about double while there is no task, while tasks are refused, or while"
        " the store fails.",
    )
    compactor_bytes_per_s_min: int = setting(
        48 * MIB,
        within=(1, 1024 * 1024 * MIB),
        doc="Bytes per second that one compactor reads and writes together while it keeps up. Two minutes of"
        " uninterrupted work double the rate, up to the sum of the two limits below.",
    )
    compactor_read_bytes_per_s_max: int = setting(
        128 * MIB,
        within=(1, 1024 * 1024 * MIB),
        doc="Maximum bytes per second that one compactor reads from the store.",
    )
    compactor_write_bytes_per_s_max: int = setting(
        128 * MIB,
        within=(1, 1024 * 1024 * MIB),
        doc="Maximum bytes per second that one compactor writes to the store. Copies within the store count"
        " as requests without bytes.",
    )
    compactor_requests_per_s_max: int = setting(
        200,
        within=(1, 1_000_000),
        unit="requests/s",
        doc="Maximum requests per second that one compactor makes to the store.",
    )
