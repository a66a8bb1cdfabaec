"""Settings of compaction: the size of a task, which objects are excluded, and waiting times.

docs/design/compaction.md#what-is-offered explains the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of compaction; each field's `doc` describes it."""

    compaction_lease_ttl_ms_max: int = setting(
        600_000, within=(1, 86_400_000), doc="Longest lease of a compaction task."
    )
    compaction_tasks_max: int = setting(
        256, within=(1, 10_000), unit="tasks", doc="Compaction tasks that exist at the same time."
    )
    compaction_attempts_max: int = setting(
        5,
        within=(1, 1_000),
        unit="leases",
        doc="Failed attempts after which a compaction task ends. For a while, new tasks that begin with the"
        " same source object are then smaller.",
    )
    compaction_source_bytes_max: int = setting(
        4 * GIB,
        within=(1, 1024 * GIB),
        doc="Total size of the source objects of one compaction task. A worker may request less.",
    )
    compaction_sources_max: int = setting(
        500, within=(2, 500), unit="objects", doc="Source objects of one compaction task."
    )
    compaction_streams_max: int = setting(
        1_500,
        within=(1, 2_000),
        unit="streams",
        doc="Streams in the sources of one compaction task. Keep it above set_object_streams_max "
        "of the brokers; otherwise objects with different streams are never joined.",
    )
    compaction_split_streams_max: int = setting(
        1_500,
        within=(1, 2_000),
        unit="streams",
        doc="The same limit for a task that writes a separate object for every stream (about 250 objects"
        " at a time). An object with more streams (up to compaction_streams_max) gets a task of its own.",
    )
    compaction_ranges_max: int = setting(
        12_000,
        within=(1, 20_000),
        unit="ranges",
        doc="Ranges in the stream set objects of one compaction task.",
    )
    compaction_object_bytes_max: int = setting(
        GIB, within=(1, 1024 * GIB), doc="Stream objects are joined up to this size."
    )
    compaction_settle_ms: int = setting(
        60_000,
        within=(0, 86_400_000),
        doc="Minimum age of an object before compaction. Younger objects are read most often and "
        "may be trimmed soon.",
    )
    compaction_patience_ms: int = setting(
        300_000,
        within=(0, 86_400_000),
        doc="Age at which stream set objects are compacted even if they do not fill a task.",
    )
    compaction_force_split_ms: int = setting(
        7_200_000,
        within=(1, 30 * 86_400_000),
        doc="Age at which every stream in a stream set object gets a separate object.",
    )
    compaction_trimmed_percent: int = setting(
        90,
        within=(1, 100),
        unit="percent",
        doc="Share of trimmed offsets at which a stream set object is rewritten without them. A lower value"
        " frees space earlier and copies more.",
    )
    compaction_fan_in: int = setting(
        8,
        within=(2, 1_000),
        unit="objects",
        doc="Minimum number of compacted objects of similar size, or of stream objects, that are joined.",
    )
    compaction_survey_interval_ms: int = setting(
        10_000,
        within=(1, 3_600_000),
        doc="Pause between two surveys of all objects, which find fragmented streams and measure the"
        " backlog.",
    )
