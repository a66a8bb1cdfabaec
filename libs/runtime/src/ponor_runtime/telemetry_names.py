"""The registry of metric and span names: nothing is measured under a name that is not in these tables.

Two plain tables, one row for each name. Names are what the Prometheus endpoint shows, letter by letter, and follow Prometheus' conventions: base units (seconds, bytes), in full,
at the end of the name, before the `_total` that ends every counter. A name, once released, keeps its meaning. Histograms state their bucket bounds here, so that
processes can always be added up. Instruments record whole numbers: where the row states `recorded_per_unit`, so many of what is recorded are one unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricKind(Enum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: kind, unit of what is shown, label names in order, meaning; upper bucket bounds for histograms, in what is recorded."""

    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    doc: str
    buckets: tuple[int, ...] = ()
    recorded_per_unit: int = 1
    """A histogram of seconds records microseconds: a million of them are one unit."""

    def shown(self, recorded: float) -> float:
        """What is shown of a recorded number."""
        return recorded if self.recorded_per_unit == 1 else recorded / self.recorded_per_unit


COUNTER: Final = MetricKind.COUNTER
GAUGE: Final = MetricKind.GAUGE
HISTOGRAM: Final = MetricKind.HISTOGRAM

PER_SECOND_US: Final = 1_000_000
PER_SECOND_MS: Final = 1_000

MICROSECONDS: Final = (
    50,
    100,
    200,
    400,
    800,
    1_600,
    3_200,
    6_400,
    12_800,
    25_600,
    51_200,
    102_400,
    409_600,
    1_638_400,
    6_553_600,
)
"""Buckets of durations: factors of two where disks and requests lie, coarser where something is wrong."""
LATENESS_US: Final = (12_800, 25_600, 50_000, 100_000, 400_000, 1_600_000, 6_400_000)
"""Buckets of what holds an event loop; 50 ms is what no step of a service may take."""
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)
SIZES: Final = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)

METRICS: Final[dict[str, Metric]] = {
    # Every process: ponor_runtime.health.
    "ponor_ready": Metric(GAUGE, "boolean", (), "1 while /readyz answers 200"),
    # The object store: s3stream.stores.
    "ponor_object_store_requests_total": Metric(COUNTER, "requests", ("op", "class"), "Calls that left for the store, every retry and every part counted; class is put, get or delete, as stores bill"),
    "ponor_object_store_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Payload bytes to (write) and from (read) the store"),
    "ponor_object_store_errors_total": Metric(COUNTER, "requests", ("op", "error"), "Calls that failed, by error class"),
    "ponor_object_store_retries_total": Metric(COUNTER, "requests", ("op",), "Calls made again after a retriable error"),
    "ponor_object_store_request_seconds": Metric(HISTOGRAM, "seconds", ("op",), "Duration of one call", MICROSECONDS, PER_SECOND_US),
    "ponor_object_store_concurrency": Metric(GAUGE, "requests", ("class",), "Reads and writes that may be in flight now: halves when the store asks to slow down, grows by one for as many answers"),
    "ponor_store_cost_usd_total": Metric(COUNTER, "usd", ("class",), "List price of this process's requests so far, by class"),
    "ponor_store_cost_usd_per_gigabyte": Metric(GAUGE, "usd per gigabyte", (), "List price of this process's requests so far per gigabyte appended to its write-ahead log in the store; 0 before"),
    # The journal, by its directory's role: ponor_journal.
    "ponor_journal_frames_total": Metric(COUNTER, "frames", ("journal",), "Group commits written and synced"),
    "ponor_journal_entries_total": Metric(COUNTER, "entries", ("journal",), "Entries made durable"),
    "ponor_journal_bytes_total": Metric(COUNTER, "bytes", ("journal",), "Bytes written to disk, headers and padding included"),
    "ponor_journal_sync_seconds": Metric(HISTOGRAM, "seconds", ("journal",), "Write and sync of one group commit", MICROSECONDS, PER_SECOND_US),
    "ponor_journal_queued_bytes": Metric(GAUGE, "bytes", ("journal",), "Entries taken and not yet durable"),
    "ponor_journal_retained_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes on disk above the trim point"),
    "ponor_journal_segments": Metric(GAUGE, "segments", ("journal", "state"), "Segment files, live and spare"),
    "ponor_journal_recovered_entries": Metric(GAUGE, "entries", ("journal",), "Entries found at start-up"),
    "ponor_journal_waits_for_space": Metric(
        GAUGE, "boolean", ("journal",), "1 while entries wait because the disk is full"
    ),
    "ponor_journal_torn_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes of a torn tail that start-up cut off"),
    # The write-ahead log and recovery: s3stream.
    "ponor_wal_recovery_seconds": Metric(GAUGE, "seconds", (), "How long the last recovery took"),
    "ponor_wal_recovered_bytes": Metric(GAUGE, "bytes", (), "Bytes that the last recovery uploaded"),
    "ponor_wal_append_seconds": Metric(HISTOGRAM, "seconds", (), "From append to acknowledgement", MICROSECONDS, PER_SECOND_US),
    # The object WAL: s3stream.object_wal.
    "ponor_wal_object_puts_total": Metric(COUNTER, "puts", ("kind",), "Slots (data) and fences (fence) put, each once however often it was repeated"),
    "ponor_wal_object_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of records in slots that were acknowledged"),
    "ponor_wal_object_put_seconds": Metric(HISTOGRAM, "seconds", (), "From the start of a slot's put to its confirmation, repetitions included", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_object_gather_seconds": Metric(HISTOGRAM, "seconds", (), "How long a slot gathered before it was put", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_object_read_backs_total": Metric(COUNTER, "slots", ("result",), "Slots found taken and read back: own after a lost answer, or foreign"),
    "ponor_wal_object_hedges_total": Metric(COUNTER, "puts", (), "Further copies of late slots that were sent"),
    "ponor_wal_object_hedges_won_total": Metric(COUNTER, "slots", (), "Late slots of which a further copy was answered first"),
    "ponor_wal_object_hedge_seconds": Metric(GAUGE, "seconds", (), "After how long a put is sent once more now; 0 while too few were answered"),
    "ponor_wal_object_slots": Metric(GAUGE, "slots", (), "Slots above the trim point: what a recovery would have to read"),
    "ponor_wal_object_puts_in_flight": Metric(GAUGE, "puts", (), "Slots on their way"),
    "ponor_wal_object_deleted_total": Metric(COUNTER, "slots", (), "Slots deleted below the trim point"),
    "ponor_wal_takeover_seconds": Metric(HISTOGRAM, "seconds", (), "Recovery of one log in the store, from its first listing to the log's end in the metadata", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_takeovers_running": Metric(GAUGE, "logs", (), "Logs in the store that this process recovers now, or waits to"),
    "ponor_wal_recoveries_total": Metric(COUNTER, "logs", ("result",), "Write-ahead logs in the store that this process recovered: done, lost to another recoverer, or failed"),
    # Caches of s3stream.
    "ponor_log_cache_bytes": Metric(GAUGE, "bytes", (), "Bytes of records held in the log cache"),
    "ponor_log_cache_reads_total": Metric(COUNTER, "reads", ("result",), "Fetches answered (hit) or not (miss) by the log cache"),
    "ponor_block_cache_bytes": Metric(GAUGE, "bytes", (), "Bytes of data blocks held in the block cache"),
    "ponor_block_cache_reads_total": Metric(COUNTER, "blocks", ("result",), "Blocks found (hit) or fetched (miss)"),
    "ponor_block_cache_evictions_total": Metric(COUNTER, "blocks", (), "Blocks dropped for room"),
    "ponor_read_ahead_bytes": Metric(GAUGE, "bytes", (), "Bytes of blocks that were read ahead and nobody has used yet"),
    "ponor_read_ahead_blocks_total": Metric(
        COUNTER, "blocks", ("result",), "Blocks read ahead: used, dropped because nobody came, given_up for a read that had no room"
    ),
    # Uploads of s3stream.
    "ponor_upload_objects_total": Metric(COUNTER, "objects", ("kind",), "Objects committed, stream objects (so) and stream set objects (sso)"),
    "ponor_upload_bytes_total": Metric(COUNTER, "bytes", ("kind",), "Bytes of committed objects"),
    "ponor_upload_blocks_waiting": Metric(GAUGE, "blocks", (), "Sealed log cache blocks not yet committed"),
    "ponor_upload_seconds": Metric(HISTOGRAM, "seconds", ("stage",), "Stages of an upload: prepare, put, commit", MICROSECONDS, PER_SECOND_US),
    # The Kafka listener and its partitions: ponor_broker.
    "ponor_kafka_requests_total": Metric(COUNTER, "requests", ("api",), "Requests answered"),
    "ponor_kafka_request_seconds": Metric(HISTOGRAM, "seconds", ("api",), "From the whole request read to the response written", MICROSECONDS, PER_SECOND_US),
    "ponor_kafka_errors_total": Metric(COUNTER, "responses", ("api", "error"), "Error codes sent"),
    "ponor_kafka_connections": Metric(GAUGE, "connections", (), "Open client connections"),
    "ponor_kafka_connections_refused_total": Metric(COUNTER, "connections", ("reason",), "Connections closed by the broker"),
    "ponor_kafka_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Bytes received from (in) and sent to (out) clients"),
    "ponor_kafka_inflight_bytes": Metric(GAUGE, "bytes", (), "Request bytes held until they are answered"),
    "ponor_kafka_receiving_bytes": Metric(
        GAUGE, "bytes", (), "Length of the requests that are arriving, as far as they were let in"
    ),
    "ponor_fetch_answers_bytes": Metric(GAUGE, "bytes", (), "Fetch answers that clients have not read yet"),
    "ponor_budget_limit": Metric(
        GAUGE, "1", ("budget",), "The bound of a budget, by its setting, in that setting's unit"
    ),
    "ponor_partition_moves_total": Metric(
        COUNTER, "partitions", ("result",), "Moves away from this broker that ended: moved, cancelled, failed (taken back by this broker)"
    ),
    "ponor_partition_move_seconds": Metric(
        HISTOGRAM, "seconds", ("step",), "Steps of moves: residue, drain, tail, close at the source, open at the target", MICROSECONDS, PER_SECOND_US
    ),
    "ponor_transit_requests_total": Metric(
        COUNTER, "requests", ("result",), "Requests for partitions on the move: parked, expired (of these), refused at once"
    ),
    "ponor_transit_parked_bytes": Metric(GAUGE, "bytes", (), "Bytes of requests that wait for a partition on the move"),
    "ponor_fetches_parked": Metric(GAUGE, "requests", (), "Fetches that wait for data"),
    "ponor_fetch_sessions": Metric(GAUGE, "sessions", (), "Incremental fetch sessions remembered"),
    "ponor_fetch_session_partitions": Metric(GAUGE, "partitions", (), "Partitions that fetch sessions remember"),
    "ponor_fetch_session_bytes": Metric(GAUGE, "bytes", (), "Memory that fetch sessions are charged"),
    "ponor_fetch_sessions_evicted_total": Metric(COUNTER, "sessions", (), "Fetch sessions that had to leave for others"),
    "ponor_fetch_sessions_refused_total": Metric(COUNTER, "sessions", (), "Fetch sessions not given, or ended, for want of room"),
    "ponor_cold_reads": Metric(GAUGE, "reads", ("state",), "Reads of old data on behalf of fetches, reading and waiting for their turn"),
    "ponor_cold_reads_refused_total": Metric(COUNTER, "reads", (), "Reads of old data refused because too many wait"),
    "ponor_cold_read_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of batches read from objects on behalf of fetches"),
    "ponor_partitions_open": Metric(GAUGE, "partitions", (), "Partitions this broker leads"),
    "ponor_cleaner_passes_total": Metric(COUNTER, "passes", ("result",), "Cleanings of compacted partitions that ended: done, stopped (closed, moved or changed meanwhile), failed"),
    "ponor_cleaner_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Bytes of batches that the log cleaner read (in) and wrote (out)"),
    "ponor_cleaner_records_removed_total": Metric(COUNTER, "records", (), "Records that the log cleaner removed"),
    "ponor_cleaner_map_bytes": Metric(GAUGE, "bytes", (), "Memory of the log cleaner's map of keys"),
    "ponor_cleaner_dirty_max_ratio": Metric(GAUGE, "1", (), "Largest share of a compacted partition that waits for cleaning, 0 to 1"),
    "ponor_cleaner_dirty_age_seconds": Metric(GAUGE, "seconds", (), "Age of the oldest segment of a compacted partition that may be cleaned and was not"),
    "ponor_retention_deleted_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of segments that retention dropped"),
    "ponor_groups": Metric(GAUGE, "groups", ("state",), "Consumer groups this broker coordinates"),
    "ponor_group_members": Metric(GAUGE, "members", (), "Members of the groups this broker coordinates"),
    "ponor_group_offsets": Metric(GAUGE, "offsets", (), "Committed offsets this broker holds"),
    "ponor_groups_memory_bytes": Metric(GAUGE, "bytes", (), "Counted for groups, members and offsets, against groups_memory_bytes_max"),
    "ponor_group_refusals_total": Metric(COUNTER, "requests", (), "New groups, members and offsets refused because groups_max or groups_memory_bytes_max is reached"),
    "ponor_group_log_bytes": Metric(GAUGE, "bytes", (), "Length of the led partitions of __consumer_offsets: what a restart reads"),
    "ponor_group_offsets_expired_total": Metric(COUNTER, "offsets", (), "Offsets whose retention time was over"),
    "ponor_group_log_rewrites_total": Metric(COUNTER, "rewrites", (), "Partitions of __consumer_offsets written anew and trimmed"),
    # The controller.
    "ponor_controller_commits_total": Metric(COUNTER, "batches", (), "Record batches committed"),
    "ponor_controller_records_total": Metric(COUNTER, "records", ("kind",), "Records committed"),
    "ponor_controller_operations_total": Metric(COUNTER, "operations", ("operation", "result"), "Operations answered"),
    "ponor_controller_tick_late_seconds": Metric(
        HISTOGRAM, "seconds", (), "How much later than due a tick of consensus ran: what held the event loop", MICROSECONDS, PER_SECOND_US
    ),
    "ponor_controller_tick_late_cause_seconds": Metric(
        HISTOGRAM,
        "seconds",
        ("cause",),
        "Of ticks more than 12.8 ms late: how long of that the loop's thread ran (ran), was ready while others had the processors (waited), or neither (blocked: the kernel,"
        " another thread in the interpreter, a host that took the processor away)",
        LATENESS_US,
        PER_SECOND_US,
    ),
    "ponor_controller_commit_seconds": Metric(HISTOGRAM, "seconds", (), "From proposal to committed", MICROSECONDS, PER_SECOND_US),
    "ponor_controller_sessions": Metric(GAUGE, "sessions", (), "Node sessions that are alive"),
    "ponor_controller_suspected_nodes": Metric(GAUGE, "nodes", (), "Registered brokers that have been silent for longer than the session timeout"),
    "ponor_controller_moves_under_way": Metric(GAUGE, "moves", (), "Partitions on their way to another broker"),
    "ponor_controller_objects_reclaimed_total": Metric(
        COUNTER, "objects", (), "Objects destroyed after trims and deletions left nothing live in them"
    ),
    "ponor_controller_streams_to_reclaim": Metric(
        GAUGE, "streams", (), "Trimmed or deleted streams whose dead objects are not all destroyed"
    ),
    "ponor_controller_topic_deletions": Metric(
        GAUGE, "topics", (), "Deleted topics whose streams and keys are not all deleted"
    ),
    "ponor_controller_move_interventions_total": Metric(
        COUNTER,
        "moves",
        ("action",),
        "Moves that the controller ended by itself: the target elected, the move cancelled, the source's node fenced",
    ),
    "ponor_failovers_total": Metric(COUNTER, "brokers", (), "Brokers that were fenced because nothing was heard of them"),
    "ponor_controller_failover_elections_total": Metric(COUNTER, "partitions", (), "Partitions given to another broker because theirs was fenced"),
    "ponor_controller_wal_assignments_total": Metric(COUNTER, "logs", (), "Write-ahead logs in the store that a broker was told to recover, each time one was told to"),
    "ponor_controller_wal_recoveries": Metric(GAUGE, "logs", (), "Write-ahead logs in the store whose owner is gone and that are not recovered yet"),
    "ponor_controller_drain_moves_total": Metric(COUNTER, "moves", (), "Moves begun because a broker drains"),
    "ponor_controller_snapshots_total": Metric(COUNTER, "snapshots", (), "Images written to disk"),
    "ponor_controller_subscriber_divergences_total": Metric(
        COUNTER,
        "subscribers",
        (),
        "Subscribers whose image differed from this controller's at the same index; must stay 0",
    ),
    "ponor_controller_snapshots_without_space_total": Metric(COUNTER, "snapshots", (), "Images that were not written because the disk is full"),
    "ponor_controller_subscriptions": Metric(GAUGE, "subscriptions", (), "Open subscription streams"),
    "ponor_controller_committed_index": Metric(GAUGE, "index", (), "Index of the last committed batch"),
    "ponor_controller_raft_term": Metric(GAUGE, "term", (), "Term of this controller"),
    "ponor_controller_raft_leading": Metric(GAUGE, "controllers", (), "1 while this controller leads and executes operations"),
    "ponor_controller_raft_window_full": Metric(GAUGE, "1", (), "1 while the entries in memory leave no room for proposals, because no snapshot lets them go"),
    "ponor_controller_raft_last_index": Metric(GAUGE, "index", (), "Index of the last batch in the log, committed or not"),
    "ponor_controller_raft_unsynced_writes": Metric(GAUGE, "writes", (), "Writes to the log that are not durable yet"),
    "ponor_controller_peers_connected": Metric(GAUGE, "controllers", (), "Other controllers to which a stream is open"),
    "ponor_controller_history_lost": Metric(GAUGE, "boolean", (), "1 while this controller lets no node in because a node has seen a later log than its own: its directory is an older copy"),
    "ponor_controller_peer_refusals_total": Metric(COUNTER, "connections", ("reason",), "Other controllers that refused this one: wrong cluster, directory or incarnation"),
    # Compaction and readers' leases, at the leading controller; others show 0. What became of tasks: ponor_controller_operations_total of commit_compaction.
    "ponor_compaction_tasks": Metric(GAUGE, "tasks", (), "Compaction tasks under way"),
    "ponor_compaction_backlog_objects": Metric(GAUGE, "objects", (), "Stream set objects as brokers uploaded them, that no compaction has replaced yet"),
    "ponor_compaction_backlog_bytes": Metric(GAUGE, "bytes", (), "Bytes of these"),
    "ponor_compaction_backlog_age_seconds": Metric(GAUGE, "seconds", (), "Age of the oldest of these"),
    "ponor_compaction_fragmented_streams": Metric(GAUGE, "streams", (), "Streams with several stream objects below half of the size up to which such are joined"),
    "ponor_object_metadata_bytes_per_gigabyte": Metric(GAUGE, "bytes per gigabyte", (), "Metadata about objects in the image, about, per 10^9 bytes of data"),
    "ponor_snapshot_leases": Metric(GAUGE, "leases", (), "Snapshots that are being read"),
    "ponor_snapshot_pinned_bytes": Metric(GAUGE, "bytes", (), "Destroyed objects that are kept for readers of snapshots"),
    "ponor_snapshot_leases_broken_total": Metric(COUNTER, "leases", (), "Leases of snapshots ended against their readers: too old, or they kept too much"),
    # The balancer, at the leading controller; others show 0.
    "ponor_broker_load": Metric(GAUGE, "1", ("broker",), "Share of what a broker can carry, 0 to 1: the largest of traffic in, traffic out, partitions and processor; 0 at controllers that do not lead"),
    "ponor_brokers_wanted": Metric(GAUGE, "brokers", (), "Brokers that the present load wants, with headroom: rises within seconds, falls late; 0 at controllers that do not lead"),
    "ponor_balancer_moves_total": Metric(COUNTER, "moves", ("goal",), "Moves that the balancer began, by the goal that asked for them"),
    # Garbage, at the leading controller; others show 0.
    "ponor_garbage_oldest_age_seconds": Metric(GAUGE, "seconds", ("state",), "Age of the oldest garbage that is still in the store: destroyed (since it was), or prepared (since its lease ran out); above the destroy delay it grows only if nobody collects; 0 at controllers that do not lead"),
    "ponor_garbage_objects": Metric(GAUGE, "objects", ("state",), "Objects destroyed and not yet deleted, or prepared and not yet committed; 0 at controllers that do not lead"),
    # Sessions and subscriptions, as nodes and tools see them: ponor_metadata.
    "ponor_session_reconnects_total": Metric(COUNTER, "connections", (), "Sessions with a controller that ended and were made anew"),
    "ponor_session_operations_in_flight": Metric(GAUGE, "operations", (), "Operations without an answer"),
    "ponor_subscription_reconnects_total": Metric(COUNTER, "connections", (), "Subscriptions that ended and were made anew"),
    "ponor_subscription_snapshots_total": Metric(COUNTER, "snapshots", (), "Images that arrived whole, not as batches"),
    "ponor_subscription_digest_mismatches_total": Metric(COUNTER, "frames", (), "Batches whose digest differed from the controller's: an alarm"),
    "ponor_subscription_applied_index": Metric(GAUGE, "index", (), "Newest index that the image shows"),
    # A compactor. Read and written are what left for the store, tasks that came to nothing included: written / replaced is the write amplification of compaction.
    "ponor_compactor_tasks_total": Metric(COUNTER, "tasks", ("outcome",), "Compaction tasks by their outcome: done, settled, source_gone, stale_plan, fenced, unfit, damaged, refused, store_failed"),
    "ponor_compactor_read_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of objects that were read to be compacted, indexes estimated"),
    "ponor_compactor_written_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of objects that were written; copies made by the store itself are not in it"),
    "ponor_compactor_replaced_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of objects that were replaced by commits"),
    "ponor_compactor_throttled_seconds_total": Metric(COUNTER, "seconds", (), "Waiting of requests for the rates of bytes and requests, all requests added up", recorded_per_unit=PER_SECOND_MS),
    "ponor_compactor_pace_ratio": Metric(GAUGE, "1", (), "Share of these rates that is used: below 1 after the store asked to slow down"),
    "ponor_compactor_pace_bytes_per_second": Metric(GAUGE, "bytes per second", (), "Bytes that may be read and written in a second, added up: rises while there is always more to do"),
    "ponor_compactor_progress_ratio": Metric(GAUGE, "1", (), "Share of the present task that is done; 0 between tasks"),
    "ponor_compactor_eta_seconds": Metric(GAUGE, "seconds", (), "Seconds that the present task will still take, if it goes on as it went so far"),
    "ponor_compactor_held_bytes": Metric(GAUGE, "bytes", (), "Of compaction_budget_bytes, what the present task holds"),
    "ponor_compactor_resident_max_bytes": Metric(GAUGE, "bytes", (), "Most resident memory that the process ever had"),
    # The garbage collector.
    "ponor_gc_claimed_total": Metric(COUNTER, "objects", (), "Objects claimed for deletion"),
    "ponor_gc_deleted_total": Metric(COUNTER, "objects", (), "Objects deleted and confirmed"),
    "ponor_gc_wal_leftovers_total": Metric(COUNTER, "slots", (), "Slots found in write-ahead logs that were closed before they arrived"),
    "ponor_gc_collected_total": Metric(COUNTER, "objects", ("reason",), "What this collector deleted: claimed (destroyed, or prepared and never committed), orphan (unknown to the metadata), upload (begun in parts and given up), wal (slots that came late)"),
    "ponor_gc_orphan_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of orphans deleted"),
    "ponor_gc_orphans_found": Metric(GAUGE, "objects", (), "Orphans that the last finished reconciliation found, deleted or not"),
    "ponor_gc_report_only": Metric(GAUGE, "boolean", (), "1 while the collector deletes nothing because the marker of its cluster is missing or foreign, or an object has an id that was not given yet"),
    "ponor_gc_strange_keys": Metric(GAUGE, "keys", (), "Keys among our objects that no object of ours can have, as of the last finished reconciliation; they are left alone"),
    "ponor_gc_reconciliations_total": Metric(COUNTER, "passes", ("outcome",), "Reconciliations of the bucket with the metadata: done, or failed and taken up again later"),
    "ponor_gc_delete_keys_per_second": Metric(GAUGE, "keys per second", (), "How fast this collector may delete now: halved when the store asks to slow down"),
    "ponor_gc_failures_total": Metric(COUNTER, "sweeps", (), "Claims whose objects could not be deleted or confirmed; claimed again later"),
}  # fmt: skip

SPANS: Final[dict[str, str]] = {
    # One Kafka request: ponor_broker.
    "ponor.kafka.request": "SERVER: one request, from its frame to its answer (messaging.*, network.peer.address; ponor.kafka.api names it)",
    "ponor.produce.validate": "One partition's batch checked: CRC, counts, sizes, timestamps",
    "ponor.produce.append": "Sequence check, offsets, and the hand-over to the stream",
    # One partition's move, in the trace of whoever asked for it: ponor_broker.
    "ponor.move.depart": "The source's part, from seeing the move to seeing its end",
    "ponor.move.residue": "What only log and memory hold is uploaded, while the partition serves",
    "ponor.move.drain": "No appends any more: those under way become durable, the clean checkpoint is written",
    "ponor.move.tail": "The rest is uploaded",
    "ponor.move.close": "Streams closed, the election asked for, until this broker's image shows it",
    "ponor.move.open": "The target's part, from seeing the election to serving",
    # Storage: s3stream.
    "ponor.wal.commit": "From the hand-over of an append to the end of the fdatasync that made it durable, with everything that shared it",
    "ponor.recovery": "Start-up of a broker's storage: WAL replay, upload, close",
    "ponor.upload": "One sealed block from prepare to commit; in the trace of the oldest sampled append it carries, linked to all of them",
    "ponor.fetch.objects": "A fetch that went to the object store",
    "ponor.fetch.find": "Which objects hold these offsets: the read index of the local image, and how long it lagged",
    "ponor.object_store.put": "CLIENT: one put (rpc.*, aws.s3.*)",
    "ponor.object_store.get": "CLIENT: one ranged get of an index or of blocks (rpc.*, aws.s3.*)",
    # Sessions: ponor_metadata and ponor_controller.
    "ponor.session.operation": "CLIENT: one operation at the controller, repeats included (rpc.*)",
    "ponor.controller.move": "A move that the controller ended by itself, to its commit",
    "ponor.controller.drain": "A wave of moves away from a draining broker; the trace of each of them",
    "ponor.controller.balance": "Moves that the balancer begins; the trace of each of them",
    "ponor.controller.operation": "SERVER: one operation from the session to its result, committed (rpc.*)",
}
