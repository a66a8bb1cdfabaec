"""Settings of compaction: how much one task may take, what is left alone, and when waiting ends.

What lives here: one frozen dataclass, a part of the controller's settings. Why the defaults are what they are: docs/design/compaction.md#what-is-offered.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What an operator may choose; see each field's `doc`."""

    compaction_lease_ttl_ms_max: int = setting(
        600_000, minimum=1, maximum=86_400_000, unit="ms", doc="Longest lease of a compaction task."
    )
    compaction_tasks_max: int = setting(
        256, minimum=1, maximum=10_000, unit="tasks", doc="Compaction tasks under way at once."
    )
    compaction_attempts_max: int = setting(
        5,
        minimum=1,
        maximum=1_000,
        unit="leases",
        doc="Workers that a task is given to, one after the other, before it is given up for a while.",
    )
    compaction_source_bytes_max: int = setting(
        4 * GIB,
        minimum=1,
        maximum=1024 * GIB,
        unit="bytes",
        doc="Sources of one compaction task; a worker may ask for less.",
    )
    compaction_sources_max: int = setting(
        500, minimum=2, maximum=500, unit="objects", doc="Source objects of one compaction task."
    )
    compaction_streams_max: int = setting(
        1_500,
        minimum=1,
        maximum=2_000,
        unit="streams",
        doc="Streams in the sources of one compaction task; its commit is one turn of the leader's event loop. Above set_object_streams_max of the brokers,"
        " or objects whose streams differ a little are never joined.",
    )
    compaction_split_streams_max: int = setting(
        1_500,
        minimum=1,
        maximum=2_000,
        unit="streams",
        doc="The same for a task that gives every stream an object of its own, some 250 at a time. A wider object (up to `compaction_streams_max`) is split alone.",
    )
    compaction_ranges_max: int = setting(
        12_000,
        minimum=1,
        maximum=20_000,
        unit="ranges",
        doc="Ranges in the stream set objects of one compaction task: the offer and the commit look at each in one turn of the event loop.",
    )
    compaction_object_bytes_max: int = setting(
        GIB,
        minimum=1,
        maximum=1024 * GIB,
        unit="bytes",
        doc="Size up to which stream objects are joined.",
    )
    compaction_settle_ms: int = setting(
        60_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="Age below which an object is left alone: it is read most, and may be trimmed before it is worth a copy.",
    )
    compaction_patience_ms: int = setting(
        300_000,
        minimum=0,
        maximum=86_400_000,
        unit="ms",
        doc="Age from which stream set objects are compacted even if they fill only a part of a task.",
    )
    compaction_force_split_ms: int = setting(
        7_200_000,
        minimum=1,
        maximum=30 * 86_400_000,
        unit="ms",
        doc="Age from which every stream in a stream set object gets an object of its own.",
    )
    compaction_worn_percent: int = setting(
        90,
        minimum=1,
        maximum=100,
        unit="percent",
        doc="Share of the offsets in a stream set object that are trimmed, from which on it is written again without them. Less frees space earlier and copies more.",
    )
    compaction_fan_in: int = setting(
        8,
        minimum=2,
        maximum=1_000,
        unit="objects",
        doc="How many objects of about one size that were compacted before, or stream objects, are joined into one at least.",
    )
    compaction_survey_interval_ms: int = setting(
        10_000,
        minimum=1,
        maximum=3_600_000,
        unit="ms",
        doc="Pause between two surveys of all objects, which find fragmented streams and measure the backlog.",
    )
