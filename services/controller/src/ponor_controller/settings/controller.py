"""Settings of the controller: all limits and intervals, with their defaults.

`ponor_runtime.settings` parses and checks values according to the metadata of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor_runtime.settings import setting

from ponor_controller.settings.balancing import BalanceSettings
from ponor_controller.settings.compaction import CompactionSettings

GIB = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotLeaseSettings:
    """Settings of snapshot leases; each field's `doc` describes it."""

    snapshot_lease_age_ms_max: int = setting(
        86_400_000,
        within=(1, 7 * 86_400_000),
        doc="Longest total duration of a snapshot lease. Renewals do not extend it.",
    )
    snapshot_leases_max: int = setting(
        1_000, within=(1, 100_000), unit="leases", doc="Snapshot leases that exist at the same time."
    )
    snapshot_pinned_bytes_max: int = setting(
        1024 * GIB,
        within=(0, 1024 * 1024 * GIB),
        doc="Total size of destroyed objects that snapshot leases may keep in the store. Above it, the"
        " controller ends the oldest lease.",
    )


KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller; each field's `doc` describes it."""

    # Objects
    destroy_delay_ms: int = setting(
        600_000,
        within=(0, 7 * 86_400_000),
        doc="Time between the destruction of an object (or the expiry of its prepared id) and its "
        "deletion from the store. Keep it above twice the longest read timeout and above the longest put.",
    )
    prepared_ttl_ms_max: int = setting(
        86_400_000, within=(1, 7 * 86_400_000), doc="Longest time before prepared object ids expire."
    )
    prepared_count_max: int = setting(
        1_000,
        within=(1, 1_000),
        unit="objects",
        doc="Object ids that one operation may reserve. Brokers reserve at most 500 at once.",
    )
    claim_ttl_ms_max: int = setting(
        600_000, within=(1, 86_400_000), doc="Longest claim of a garbage collector."
    )
    claim_count_max: int = setting(
        1_000, within=(1, 10_000), unit="objects", doc="Objects in one claim or confirmation."
    )

    # Streams, keys, topics
    streams_per_operation_max: int = setting(
        1_000,
        within=(1, 10_000),
        unit="streams",
        doc="Streams that one operation may create, open, close or delete. Do not lower it: brokers"
        " close up to 1,000 at once.",
    )
    upload_ranges_max: int = setting(
        2_000,
        within=(1, 2_000),
        unit="ranges",
        doc="Stream ranges in one commit of an upload or a compaction, including those of stream objects.",
    )
    commit_objects_max: int = setting(
        250,
        within=(1, 250),
        unit="objects",
        doc="Stream objects in one commit of an upload or a compaction. Do not lower it: brokers "
        "and compactors send up to 250.",
    )
    key_bytes_max: int = setting(1_024, within=(1, 64 * KIB), doc="Longest key.")
    value_bytes_max: int = setting(4_096, within=(1, 64 * KIB), doc="Longest value of a key.")
    keys_per_operation_max: int = setting(
        1_000, within=(1, 10_000), unit="keys", doc="Keys in one put operation."
    )
    default_partitions: int = setting(
        1,
        within=(1, 1_000),
        unit="partitions",
        doc="Partitions of a topic that is created with -1 partitions.",
    )
    partitions_per_topic_max: int = setting(
        1_000,
        within=(1, 1_000),
        unit="partitions",
        doc="Partitions of one topic. They are created and deleted in one turn of the event loop.",
    )
    partitions_max: int = setting(
        50_000, within=(1, 60_000), unit="partitions", doc="Partitions in the cluster."
    )
    producer_ids_max: int = setting(
        10_000, within=(1, 1_000_000), unit="ids", doc="Producer ids in one block."
    )

    # Security
    scram_credentials_max: int = setting(
        20_000,
        within=(0, 100_000),
        unit="credentials",
        doc="SCRAM credentials in the cluster. A user may have one for each of the two mechanisms.",
    )
    acls_max: int = setting(100_000, within=(0, 100_000), unit="ACLs", doc="ACLs in the cluster.")

    # Sessions
    session_timeout_ms: int = setting(
        9_000, within=(100, 600_000), doc="A node that has been silent for this time is suspected."
    )
    session_reset_grace_ms: int = setting(
        300,
        within=(1, 600_000),
        doc="A node whose session broke is suspected if it does not reconnect within this time "
        "(at most session_timeout_ms). Reconnecting takes 25 to 50 ms plus five round trips: "
        "raise this if the latency between controllers and brokers exceeds 20 ms.",
    )
    leader_wait_ms: int = setting(
        1_000,
        within=(0, 60_000),
        doc="How long a controller without a known leader delays its answer to a connecting node.",
    )
    sessions_max: int = setting(4_096, within=(1, 100_000), unit="sessions", doc="Open sessions.")
    session_operations_max: int = setting(
        1_024, within=(1, 65_536), unit="operations", doc="Operations of one session without an answer."
    )
    session_bytes_max: int = setting(
        MIB, within=(KIB, 64 * MIB), doc="Bytes of one session's operations without an answer."
    )

    # Moves of partitions
    reelection_timeout_ms: int = setting(
        15_000,
        within=(100, 3_600_000),
        doc="Time after which the controller elects the target of a move whose source closed its streams but"
        " did not request the election. After twice this time, a source with open streams is fenced.",
    )
    drain_moves_in_flight_max: int = setting(
        128,
        within=(1, 10_000),
        unit="moves",
        doc="Moves in progress from one source. If a source has more moves than this, each further group of"
        " this many moves gets one more reelection_timeout_ms.",
    )
    drain_retry_ms: int = setting(
        1_000,
        within=(1, 600_000),
        doc="Pause before a partition of a draining broker moves again after a cancelled move.",
    )

    balance: BalanceSettings = field(default_factory=BalanceSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    snapshot_leases: SnapshotLeaseSettings = field(default_factory=SnapshotLeaseSettings)

    # Consensus
    election_timeout_ms: int = setting(
        1_000,
        within=(200, 60_000),
        doc="A controller starts an election after the leader was silent for a random time "
        "between this and twice this.",
    )
    heartbeat_interval_ms: int = setting(
        100,
        within=(50, 10_000),
        doc="Interval of a leader's heartbeats; keep it below a quarter of election_timeout_ms.",
    )

    # Proposals and log
    batch_bytes_max: int = setting(
        3 * MIB, within=(64 * KIB, 3 * MIB), doc="Largest record batch; it must fit into one frame."
    )
    proposals_max: int = setting(
        4_096, within=(1, 65_536), unit="batches", doc="Proposed batches that are not committed yet."
    )
    proposals_bytes_max: int = setting(
        16 * MIB, within=(4 * MIB, 256 * MIB), doc="Bytes of proposed batches that are not committed yet."
    )
    log_segment_bytes: int = setting(
        16 * MIB, within=(4 * MIB, 1024 * MIB), doc="Size of one segment of the record log."
    )
    log_trailing_batches: int = setting(
        20_000,
        within=(0, 1_000_000),
        unit="batches",
        doc="Batches kept before a snapshot, on disk and in memory, so that a controller that was "
        "briefly absent needs no snapshot.",
    )
    log_trailing_bytes_max: int = setting(
        16 * MIB,
        within=(4 * KIB, 1024 * MIB),
        doc="The same limit in bytes; the first limit reached applies.",
    )
    snapshot_batches: int = setting(
        100_000,
        within=(1, 10_000_000),
        unit="batches",
        doc="Batches between two snapshots of the image. Memory holds up to twice as many, each with about"
        " 200 bytes in addition to its data.",
    )
    snapshot_bytes: int = setting(
        64 * MIB,
        within=(4 * KIB, 4_096 * MIB),
        doc="Log bytes between two snapshots of the image. Memory holds up to twice as many.",
    )

    # Subscriptions
    subscribers_max: int = setting(4_096, within=(1, 100_000), unit="subscribers", doc="Open subscriptions.")
    retained_bytes_max: int = setting(
        32 * MIB,
        within=(4 * MIB, 1024 * MIB),
        doc="Committed batches kept in memory for subscribers; a subscriber that falls behind further is"
        " disconnected.",
    )
    retained_batches_max: int = setting(
        200_000, within=(1, 10_000_000), unit="batches", doc="The same limit as a number of batches."
    )
    progress_interval_ms: int = setting(
        500, within=(10, 60_000), doc="Interval at which an idle subscription receives the commit index."
    )
    subscriber_window_bytes: int = setting(
        16 * MIB,
        within=(4 * MIB, 1024 * MIB),
        doc="Bytes sent to one subscriber that it has not acknowledged.",
    )
    subscription_frames_per_second_max: int = setting(
        2_000,
        within=(20, 1_000_000),
        unit="frames",
        doc="Frames per second to all subscribers together. With many subscribers, a batch waits "
        "up to 50 ms so that several share a frame.",
    )
    resume_wait_ms_max: int = setting(
        2_000,
        within=(0, 60_000),
        doc="How long a controller lets a subscriber with a newer index wait before it redirects "
        "the subscriber.",
    )
