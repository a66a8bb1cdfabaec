"""The registry of metric and span names; every instrument must have a row here.

Names appear unchanged on the Prometheus endpoint and follow Prometheus' conventions: base units (seconds,
bytes) at the end of the name, and `_total` at the end of every counter. A released name keeps its meaning.
Histograms declare their bucket bounds here, so that histograms of several processes can be added up.
Instruments record integers; `recorded_per_unit` recorded units are one shown unit.
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
    """One row: kind, shown unit, label names in order, meaning, and upper bucket bounds in the recorded unit
    for histograms.
    """

    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    doc: str
    buckets: tuple[int, ...] = ()
    recorded_per_unit: int = 1
    """For example 1,000,000 for a histogram in seconds that records microseconds."""

    def shown(self, recorded: float) -> float:
        """Convert a recorded number to the shown unit."""
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
"""Buckets of durations: factors of two in the normal range of disks and requests, coarser above."""
TRANSACTION_US: Final = (
    1_000,
    5_000,
    20_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    15_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
)
"""Buckets of how long transactions stay open: up to Kafka's default of the longest timeout."""
LATENESS_US: Final = (12_800, 25_600, 50_000, 100_000, 400_000, 1_600_000, 6_400_000)
"""Buckets of event loop lateness; no step of a service may take more than 50 ms."""

METRICS: Final[dict[str, Metric]] = {
    # Every process: ponor_runtime.health.
    "ponor_ready": Metric(GAUGE, "boolean", (), "1 while /readyz answers 200"),
    # The object store: s3stream.stores.
    "ponor_object_store_requests_total": Metric(COUNTER, "requests", ("op", "class"), "Requests sent to the store, including retries and parts, by billing class: put, get or delete"),
    "ponor_object_store_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Payload bytes written to the store (write) and read from it (read)"),
    "ponor_object_store_errors_total": Metric(COUNTER, "requests", ("op", "error"), "Calls that failed, by"
                                                                                    " error class"),
    "ponor_object_store_retries_total": Metric(COUNTER, "requests", ("op",), "Requests repeated after a"
                                                                             " retriable error"),
    "ponor_object_store_request_seconds": Metric(HISTOGRAM, "seconds", ("op",), "Duration of one call", MICROSECONDS, PER_SECOND_US),
    "ponor_object_store_concurrency": Metric(GAUGE, "requests", ("class",), "Current limit of concurrent"
                                                                            " reads and writes: halved when"
                                                                            " the store asks to slow down,"
                                                                            " raised by one after that many"
                                                                            " successful responses"),
    "ponor_store_cost_usd_total": Metric(COUNTER, "usd", ("class",), "List price of this process's requests"
                                                                     " so far, by class"),
    "ponor_store_cost_usd_per_gigabyte": Metric(GAUGE, "usd per gigabyte", (), "List price of this process's"
                                                                               " requests so far per"
                                                                               " gigabyte appended to its"
                                                                               " write-ahead log in the"
                                                                               " store; 0 before the"
                                                                               " first append"),
    # The journal, by its directory's role: ponor_journal.
    "ponor_journal_frames_total": Metric(COUNTER, "frames", ("journal",), "Group commits written and synced"),
    "ponor_journal_entries_total": Metric(COUNTER, "entries", ("journal",), "Entries made durable"),
    "ponor_journal_bytes_total": Metric(COUNTER, "bytes", ("journal",), "Bytes written to disk, headers and"
                                                                        " padding included"),
    "ponor_journal_sync_seconds": Metric(HISTOGRAM, "seconds", ("journal",), "Duration of the write and sync of one group commit", MICROSECONDS, PER_SECOND_US),
    "ponor_journal_queued_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes of accepted entries that are not durable yet"),
    "ponor_journal_retained_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes on disk above the trim"
                                                                         " point"),
    "ponor_journal_segments": Metric(GAUGE, "segments", ("journal", "state"), "Segment files, live and"
                                                                              " spare"),
    "ponor_journal_recovered_entries": Metric(GAUGE, "entries", ("journal",), "Entries found at start-up"),
    "ponor_journal_waits_for_space": Metric(
        GAUGE, "boolean", ("journal",), "1 while entries wait because the disk is full"
    ),
    "ponor_journal_torn_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes of a torn tail that start-up"
                                                                     " truncated"),
    # The write-ahead log and recovery: s3stream.
    "ponor_wal_recovery_seconds": Metric(GAUGE, "seconds", (), "Duration of the last recovery"),
    "ponor_wal_recovered_bytes": Metric(GAUGE, "bytes", (), "Bytes that the last recovery uploaded"),
    "ponor_wal_append_seconds": Metric(HISTOGRAM, "seconds", (), "Time from an append to its acknowledgement", MICROSECONDS, PER_SECOND_US),
    # The object WAL: s3stream.object_wal.
    "ponor_wal_object_puts_total": Metric(COUNTER, "puts", ("kind",), "Slots (data) and fences (fence) put,"
                                                                      " each counted once regardless of"
                                                                      " retries"),
    "ponor_wal_object_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of records in acknowledged slots"),
    "ponor_wal_object_put_seconds": Metric(HISTOGRAM, "seconds", (), "Time from the start of a slot's put to its confirmation, including retries", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_object_gather_seconds": Metric(HISTOGRAM, "seconds", (), "Time for which a slot collected records before its put", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_object_read_backs_total": Metric(COUNTER, "slots", ("result",), "Slots whose put found the key taken, by what a read of the key returned: own (the slot itself, after a lost response) or foreign"),
    "ponor_wal_object_hedges_total": Metric(COUNTER, "puts", (), "Hedged (repeated) puts of late slots"),
    "ponor_wal_object_hedges_won_total": Metric(COUNTER, "slots", (), "Late slots whose hedged put was"
                                                                      " answered first"),
    "ponor_wal_object_hedge_seconds": Metric(GAUGE, "seconds", (), "Current delay before a put is hedged; 0"
                                                                   " while there are too few samples"),
    "ponor_wal_object_slots": Metric(GAUGE, "slots", (), "Slots above the trim point, which a recovery would"
                                                         " read"),
    "ponor_wal_object_puts_in_flight": Metric(GAUGE, "puts", (), "Slots being put"),
    "ponor_wal_object_deleted_total": Metric(COUNTER, "slots", (), "Slots deleted below the trim point"),
    "ponor_wal_takeover_seconds": Metric(HISTOGRAM, "seconds", (), "Duration of the recovery of one log in the store, from the first listing of its slots until the metadata shows it closed", MICROSECONDS, PER_SECOND_US),
    "ponor_wal_takeovers_running": Metric(GAUGE, "logs", (), "Write-ahead logs in the store that this"
                                                             " process is recovering or has queued"),
    "ponor_wal_recoveries_total": Metric(COUNTER, "logs", ("result",), "Write-ahead logs in the store that"
                                                                       " this process recovered: done, lost"
                                                                       " to another recoverer, or failed"),
    # Caches of s3stream.
    "ponor_log_cache_bytes": Metric(GAUGE, "bytes", (), "Bytes of records held in the log cache"),
    "ponor_log_cache_reads_total": Metric(COUNTER, "reads", ("result",), "Fetches answered by the log cache"
                                                                         " (hit) or not (miss)"),
    "ponor_block_cache_bytes": Metric(GAUGE, "bytes", (), "Bytes of data blocks held in the block cache"),
    "ponor_block_cache_reads_total": Metric(COUNTER, "blocks", ("result",), "Blocks found in the cache (hit)"
                                                                            " or fetched from the store"
                                                                            " (miss)"),
    "ponor_block_cache_evictions_total": Metric(COUNTER, "blocks", (), "Blocks evicted"),
    "ponor_read_ahead_bytes": Metric(GAUGE, "bytes", (), "Bytes of blocks read ahead and not used yet"),
    "ponor_read_ahead_blocks_total": Metric(
        COUNTER, "blocks", ("result",), "Blocks read ahead: used, dropped unused, given_up for a read"
                                        " without room in the cache"
    ),
    # Uploads of s3stream.
    "ponor_upload_objects_total": Metric(COUNTER, "objects", ("kind",), "Objects committed, stream objects"
                                                                        " (so) and stream set objects (sso)"),
    "ponor_upload_bytes_total": Metric(COUNTER, "bytes", ("kind",), "Bytes of committed objects"),
    "ponor_upload_blocks_waiting": Metric(GAUGE, "blocks", (), "Sealed log cache blocks that are not"
                                                               " committed yet"),
    "ponor_upload_seconds": Metric(HISTOGRAM, "seconds", ("stage",), "Duration of a stage of an upload: prepare, put or commit", MICROSECONDS, PER_SECOND_US),
    # The Kafka listener and its partitions: ponor_broker.
    "ponor_kafka_requests_total": Metric(COUNTER, "requests", ("api",), "Requests answered"),
    "ponor_kafka_request_seconds": Metric(HISTOGRAM, "seconds", ("api",), "Time from the complete request to the written response", MICROSECONDS, PER_SECOND_US),
    "ponor_kafka_connections": Metric(GAUGE, "connections", (), "Open client connections"),
    "ponor_kafka_connections_pending": Metric(GAUGE, "connections", (), "Clients that have not completed the TLS handshake or SASL authentication"),
    "ponor_kafka_connections_refused_total": Metric(COUNTER, "connections", ("reason",), "Connections closed"
                                                                                         " by the broker"),
    "ponor_kafka_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Bytes received from (in) and sent"
                                                                        " to (out) clients"),
    "ponor_kafka_inflight_bytes": Metric(GAUGE, "bytes", (), "Request bytes held until the response"),
    "ponor_kafka_receiving_bytes": Metric(
        GAUGE, "bytes", (), "Bytes of admitted requests that are not completely received yet"
    ),
    "ponor_fetch_answers_bytes": Metric(GAUGE, "bytes", (), "Fetch responses that clients have not read yet"),
    "ponor_budget_limit": Metric(
        GAUGE, "1", ("budget",), "Limit of a budget, in the unit of its setting"
    ),
    "ponor_partition_moves_total": Metric(
        COUNTER, "partitions", ("result",), "Finished moves away from this broker: moved, cancelled, failed"
                                            " (reopened by this broker)"
    ),
    "ponor_partition_move_seconds": Metric(
        HISTOGRAM, "seconds", ("step",), "Duration of a step of a move: residue, drain, tail and close at the source, open at the target", MICROSECONDS, PER_SECOND_US
    ),
    "ponor_transit_requests_total": Metric(
        COUNTER, "requests", ("result",), "Requests for moving partitions: parked, expired (of the parked"
                                          " ones), refused without parking"
    ),
    "ponor_transit_parked_bytes": Metric(GAUGE, "bytes", (), "Bytes of requests that wait for a moving"
                                                             " partition"),
    "ponor_fetches_parked": Metric(GAUGE, "requests", (), "Fetches that wait for data"),
    "ponor_fetch_sessions": Metric(GAUGE, "sessions", (), "Cached incremental fetch sessions"),
    "ponor_fetch_session_partitions": Metric(GAUGE, "partitions", (), "Partitions in cached fetch sessions"),
    "ponor_fetch_session_bytes": Metric(GAUGE, "bytes", (), "Memory charged for fetch sessions"),
    "ponor_fetch_sessions_evicted_total": Metric(COUNTER, "sessions", (), "Fetch sessions evicted"),
    "ponor_fetch_sessions_refused_total": Metric(COUNTER, "sessions", (), "Fetch sessions refused or ended for lack of room"),
    "ponor_share_sessions": Metric(GAUGE, "sessions", (), "Share sessions of members of share groups"),
    "ponor_share_sessions_refused_total": Metric(COUNTER, "sessions", (), "Share sessions refused for lack of room"),
    "ponor_share_partitions": Metric(GAUGE, "partitions", (), "Share partitions in memory: one for each group and partition"),
    "ponor_share_memory_bytes": Metric(GAUGE, "bytes", (), "Memory charged for the records in flight of share partitions"),
    "ponor_share_records_acquired_total": Metric(COUNTER, "records", (), "Records that members of share groups acquired"),
    "ponor_share_acknowledgements_total": Metric(COUNTER, "batches", ("result",), "Batches of acknowledgements of share groups: applied, or refused"),
    "ponor_share_locks_expired_total": Metric(COUNTER, "records", (), "Acquired records whose lock expired"),
    "ponor_cold_reads": Metric(GAUGE, "reads", ("state",), "Reads of old data for fetches: reading and queued"),
    "ponor_cold_reads_refused_total": Metric(COUNTER, "reads", (), "Reads of old data refused because the queue is full"),
    "ponor_cold_read_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of batches read from objects for fetches"),
    "ponor_partitions_open": Metric(GAUGE, "partitions", (), "Partitions this broker leads"),
    "ponor_cleaner_passes_total": Metric(COUNTER, "passes", ("result",), "Finished cleaning passes of compacted partitions: done, stopped (partition closed, moved or changed), failed"),
    "ponor_cleaner_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Bytes of batches that the log cleaner read (in) and wrote (out)"),
    "ponor_cleaner_records_removed_total": Metric(COUNTER, "records", (), "Records that the log cleaner removed"),
    "ponor_cleaner_map_bytes": Metric(GAUGE, "bytes", (), "Memory of the log cleaner's map of keys"),
    "ponor_cleaner_dirty_max_ratio": Metric(GAUGE, "1", (), "Largest dirty ratio of a compacted partition, 0 to 1"),
    "ponor_cleaner_dirty_age_seconds": Metric(GAUGE, "seconds", (), "Age of the oldest cleanable segment of a compacted partition that is not cleaned yet"),
    "ponor_retention_deleted_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of segments deleted by retention"),
    "ponor_groups": Metric(GAUGE, "groups", ("type", "state"), "Groups this broker coordinates, by Kafka's type (classic, consumer, share) and state"),
    "ponor_group_rebalances_total": Metric(COUNTER, "rebalances", ("type",), "Completed rebalances of classic groups; raised epochs of other groups"),
    "ponor_group_migrations_total": Metric(COUNTER, "groups", ("type",), "Groups with members that changed to this type"),
    "ponor_group_members": Metric(GAUGE, "members", (), "Members of the groups this broker coordinates"),
    "ponor_group_offsets": Metric(GAUGE, "offsets", (), "Committed offsets this broker holds"),
    "ponor_groups_memory_bytes": Metric(GAUGE, "bytes", (), "Memory charged for groups, members and offsets, limited by groups_memory_bytes_max"),
    "ponor_group_refusals_total": Metric(COUNTER, "requests", (), "New groups, members and offsets refused because groups_max or groups_memory_bytes_max is reached"),
    "ponor_group_log_bytes": Metric(GAUGE, "bytes", (), "Bytes of the led partitions of __consumer_offsets, which a restart reads"),
    "ponor_group_offsets_expired_total": Metric(COUNTER, "offsets", (), "Offsets deleted after their retention time"),
    "ponor_group_log_rewrites_total": Metric(COUNTER, "rewrites", (), "Partitions of __consumer_offsets rewritten and trimmed"),
    "ponor_transactional_ids": Metric(GAUGE, "ids", ("state",), "Transactional ids this broker coordinates"),
    "ponor_transactions_memory_bytes": Metric(GAUGE, "bytes", (), "Memory charged for transactional ids and the partitions of their transactions, limited by transactions_memory_bytes_max"),
    "ponor_transaction_refusals_total": Metric(COUNTER, "requests", (), "New transactional ids and partitions refused because transactions_memory_bytes_max is reached"),
    "ponor_transaction_log_bytes": Metric(GAUGE, "bytes", (), "Bytes of the led partitions of __transaction_state, which a restart reads"),
    "ponor_transactional_ids_expired_total": Metric(COUNTER, "ids", (), "Transactional ids deleted after their expiration time"),
    "ponor_transaction_log_rewrites_total": Metric(COUNTER, "rewrites", (), "Partitions of __transaction_state rewritten and trimmed"),
    "ponor_transaction_markers": Metric(GAUGE, "markers", (), "Markers of ended transactions that are not known to be durable in their partition"),
    "ponor_transaction_markers_sent_total": Metric(COUNTER, "markers", (), "Markers sent to the leaders of their partitions, including retries"),
    "ponor_transaction_marker_retries_total": Metric(COUNTER, "markers", (), "Failed attempts to write a marker; each is retried"),
    "ponor_transactions_total": Metric(COUNTER, "transactions", ("outcome",), "Transactions whose markers are all durable: commit or abort"),
    "ponor_transaction_timeouts_total": Metric(COUNTER, "transactions", (), "Transactions that the coordinator aborted after their timeout"),
    "ponor_transaction_open_seconds": Metric(HISTOGRAM, "seconds", (), "Time from the beginning of a transaction to its outcome", TRANSACTION_US, PER_SECOND_US),
    "ponor_transaction_completion_seconds": Metric(HISTOGRAM, "seconds", (), "Time from the outcome of a transaction until all its markers are durable", MICROSECONDS, PER_SECOND_US),
    "ponor_transaction_errors_total": Metric(COUNTER, "requests", ("request", "error"), "Requests that the coordinator refused (init, add, verify, end), by error"),
    "ponor_transaction_verification_requests_total": Metric(COUNTER, "requests", (), "AddPartitionsToTxn requests that this broker sent to coordinators, to verify or add partitions"),
    "ponor_transaction_verifications_total": Metric(COUNTER, "verifications", ("result",), "Verifications of a producer in a partition: accepted or refused"),
    "ponor_transaction_verifications_waiting": Metric(GAUGE, "verifications", (), "Verifications that the coordinator has not answered yet"),
    "ponor_transaction_verification_seconds": Metric(HISTOGRAM, "seconds", (), "Time for which the first batch of a transaction waited for the coordinator", MICROSECONDS, PER_SECOND_US),
    "ponor_share_state_keys": Metric(GAUGE, "partitions", (), "Share partitions whose state this broker coordinates"),
    "ponor_share_state_memory_bytes": Metric(GAUGE, "bytes", (), "Memory charged for the state of share partitions, limited by share_state_memory_bytes_max"),
    "ponor_share_state_refusals_total": Metric(COUNTER, "requests", (), "Requests refused because share_state_memory_bytes_max is reached"),
    "ponor_share_state_log_bytes": Metric(GAUGE, "bytes", (), "Bytes of the led partitions of __share_group_state, which a restart reads"),
    "ponor_share_state_log_rewrites_total": Metric(COUNTER, "rewrites", (), "Partitions of __share_group_state rewritten and trimmed"),
    "ponor_share_state_calls_waiting": Metric(GAUGE, "calls", (), "Reads and writes of share state that a share coordinator has not answered yet"),
    "ponor_share_state_requests_total": Metric(COUNTER, "requests", ("request",), "Requests that this broker sent to share coordinators, including its own: initialize, read, write, delete, summary"),
    "ponor_share_state_request_retries_total": Metric(COUNTER, "calls", (), "Failed attempts to read or write share state that were repeated"),
    "ponor_partition_open_transactions": Metric(GAUGE, "transactions", (), "Open transactions of led partitions, one for each producer and partition, as of the last survey"),
    "ponor_partition_stable_offset_max_lag": Metric(GAUGE, "offsets", (), "Largest distance between high watermark and last stable offset of a led partition, as of the last survey"),
    "ponor_partition_open_transaction_age_seconds": Metric(GAUGE, "seconds", (), "Longest time for which an open transaction has held back the last stable offset of a led partition; it restarts when the partition opens at another broker"),
    "ponor_coordinator_keys_loaded_total": Metric(COUNTER, "keys", ("topic",), "Groups or transactional ids restored by loading partitions of a coordinator's topic"),
    "ponor_coordinator_load_seconds": Metric(HISTOGRAM, "seconds", ("topic",), "Time to load one partition of a coordinator's topic", MICROSECONDS, PER_SECOND_US),
    # The controller.
    "ponor_controller_commits_total": Metric(COUNTER, "batches", (), "Record batches committed"),
    "ponor_controller_records_total": Metric(COUNTER, "records", ("kind",), "Records committed"),
    "ponor_controller_operations_total": Metric(COUNTER, "operations", ("operation", "result"), "Operations"
                                                                                                " answered"),
    "ponor_controller_tick_late_seconds": Metric(
        HISTOGRAM, "seconds", (), "Delay of the timer ticks of Raft; a long delay means that the event loop was blocked", MICROSECONDS, PER_SECOND_US
    ),
    "ponor_controller_tick_late_cause_seconds": Metric(
        HISTOGRAM,
        "seconds",
        ("cause",),
        "Parts of the delay of ticks that were more than 12.8 ms late, by cause: the loop's thread ran (ran), was runnable without a CPU"
        " (waited), or neither (blocked: the kernel,"
        " another thread holding the GIL, a host that took the CPU away)",
        LATENESS_US,
        PER_SECOND_US,
    ),
    "ponor_controller_commit_seconds": Metric(HISTOGRAM, "seconds", (), "Time from the proposal of a batch to its commit", MICROSECONDS, PER_SECOND_US),
    "ponor_controller_sessions": Metric(GAUGE, "sessions", (), "Live node sessions"),
    "ponor_controller_suspected_nodes": Metric(GAUGE, "nodes", (), "Registered brokers whose session broke"
                                                                   " and was not restored in time, or that"
                                                                   " sent nothing for the session timeout"),
    "ponor_controller_moves_under_way": Metric(GAUGE, "moves", (), "Partition moves in progress"),
    "ponor_controller_objects_reclaimed_total": Metric(
        COUNTER, "objects", (), "Objects destroyed because trims and deletions left no live data in them"
    ),
    "ponor_controller_streams_to_reclaim": Metric(
        GAUGE, "streams", (), "Trimmed or deleted streams with dead objects that are not destroyed yet"
    ),
    "ponor_controller_topic_deletions": Metric(
        GAUGE, "topics", (), "Deleted topics with streams or keys that are not deleted yet"
    ),
    "ponor_controller_move_interventions_total": Metric(
        COUNTER,
        "moves",
        ("action",),
        "Moves that the controller ended: it elected the target, cancelled the move, or fenced the source",
    ),
    "ponor_failovers_total": Metric(COUNTER, "brokers", (), "Brokers fenced because they were silent"),
    "ponor_controller_failover_elections_total": Metric(COUNTER, "partitions", (), "Partitions assigned to"
                                                                                   " another broker because"
                                                                                   " their leader was"
                                                                                   " fenced"),
    "ponor_controller_wal_assignments_total": Metric(COUNTER, "logs", (), "Assignments of write-ahead logs"
                                                                          " in the store to brokers for"
                                                                          " recovery"),
    "ponor_controller_wal_recoveries": Metric(GAUGE, "logs", (), "Write-ahead logs in the store whose owner"
                                                                 " is gone and that are not recovered yet"),
    "ponor_controller_drain_moves_total": Metric(COUNTER, "moves", (), "Moves started to drain brokers"),
    "ponor_controller_snapshots_total": Metric(COUNTER, "snapshots", (), "Snapshots of the image written to disk"),
    "ponor_controller_subscriber_divergences_total": Metric(
        COUNTER,
        "subscribers",
        (),
        "Subscribers whose image differed from this controller's at the same index; must stay 0",
    ),
    "ponor_controller_snapshots_without_space_total": Metric(COUNTER, "snapshots", (), "Snapshots of the image not written because the disk is full"),
    "ponor_controller_subscriptions": Metric(GAUGE, "subscriptions", (), "Open subscription streams"),
    "ponor_controller_committed_index": Metric(GAUGE, "index", (), "Index of the last committed batch"),
    "ponor_controller_raft_term": Metric(GAUGE, "term", (), "Raft term of this controller"),
    "ponor_controller_raft_leading": Metric(GAUGE, "controllers", (), "1 while this controller leads and"
                                                                      " executes operations"),
    "ponor_controller_raft_window_full": Metric(GAUGE, "1", (), "1 while the entries in memory leave no room"
                                                                " for proposals because no snapshot has"
                                                                " released them"),
    "ponor_controller_raft_last_index": Metric(GAUGE, "index", (), "Index of the last batch in the log,"
                                                                   " committed or not"),
    "ponor_controller_raft_unsynced_writes": Metric(GAUGE, "writes", (), "Log writes that are not durable"
                                                                         " yet"),
    "ponor_controller_peers_connected": Metric(GAUGE, "controllers", (), "Other controllers with an open"
                                                                         " stream to this one"),
    "ponor_controller_history_lost": Metric(GAUGE, "boolean", (), "1 while this controller refuses all nodes, because a node has seen a later log than this controller's directory contains: the directory is an older copy"),
    "ponor_controller_peer_refusals_total": Metric(COUNTER, "connections", ("reason",), "Other controllers"
                                                                                        " that refused this"
                                                                                        " one: wrong"
                                                                                        " cluster, directory"
                                                                                        " or incarnation"),
    # Compaction and snapshot leases, at the leading controller; others show 0. Outcomes of tasks:
    # ponor_controller_operations_total of commit_compaction.
    "ponor_compaction_tasks": Metric(GAUGE, "tasks", (), "Compaction tasks in progress"),
    "ponor_compaction_backlog_objects": Metric(GAUGE, "objects", (), "Stream set objects that no compaction"
                                                                     " has replaced since their upload"),
    "ponor_compaction_backlog_bytes": Metric(GAUGE, "bytes", (), "Bytes of the objects in the compaction"
                                                                 " backlog"),
    "ponor_compaction_backlog_age_seconds": Metric(GAUGE, "seconds", (), "Age of the oldest object in the"
                                                                         " compaction backlog"),
    "ponor_compaction_fragmented_streams": Metric(GAUGE, "streams", (), "Streams with several stream objects that are smaller than half of the maximum size up to which compaction joins them"),
    "ponor_object_metadata_bytes_per_gigabyte": Metric(GAUGE, "bytes per gigabyte", (), "Approximate"
                                                                                        " metadata about"
                                                                                        " objects in the"
                                                                                        " image per 10^9"
                                                                                        " bytes of data"),
    "ponor_snapshot_leases": Metric(GAUGE, "leases", (), "Active snapshot leases"),
    "ponor_snapshot_pinned_bytes": Metric(GAUGE, "bytes", (), "Bytes of destroyed objects kept for snapshot"
                                                              " leases"),
    "ponor_snapshot_leases_broken_total": Metric(COUNTER, "leases", (), "Snapshot leases that the controller"
                                                                        " revoked: too old, or they pinned"
                                                                        " too many bytes"),
    # The balancer, at the leading controller; others show 0.
    "ponor_broker_load": Metric(GAUGE, "1", ("broker",), "Load of a broker as a share of its capacity, 0 to"
                                                         " 1: the maximum of traffic in, traffic out,"
                                                         " partitions and CPU; 0 at controllers that do not"
                                                         " lead"),
    "ponor_brokers_wanted": Metric(GAUGE, "brokers", (), "Brokers needed for the present load, with"
                                                         " headroom: rises within seconds, falls slowly; 0"
                                                         " at controllers that do not lead"),
    "ponor_balancer_moves_total": Metric(COUNTER, "moves", ("goal",), "Moves started by the balancer, by"
                                                                      " goal"),
    # Garbage, at the leading controller; others show 0.
    "ponor_garbage_oldest_age_seconds": Metric(GAUGE, "seconds", ("state",), "Age of the oldest garbage in"
                                                                             " the store: destroyed (since"
                                                                             " it was destroyed) or prepared"
                                                                             " (since its lease expired);"
                                                                             " grows above the destroy delay"
                                                                             " only if no collector runs; 0"
                                                                             " at controllers that do not"
                                                                             " lead"),
    "ponor_garbage_objects": Metric(GAUGE, "objects", ("state",), "Objects destroyed and not yet deleted, or"
                                                                  " prepared and not yet committed; 0 at"
                                                                  " controllers that do not lead"),
    # Sessions and subscriptions, as nodes and tools see them: ponor_metadata.
    "ponor_session_reconnects_total": Metric(COUNTER, "connections", (), "Reconnects of the session with a"
                                                                         " controller"),
    "ponor_session_operations_in_flight": Metric(GAUGE, "operations", (), "Operations sent to the controller without a response yet"),
    "ponor_subscription_reconnects_total": Metric(COUNTER, "connections", (), "Reconnects of the"
                                                                              " subscription"),
    "ponor_subscription_snapshots_total": Metric(COUNTER, "snapshots", (), "Images received as a snapshot"
                                                                           " instead of batches"),
    "ponor_subscription_digest_mismatches_total": Metric(COUNTER, "frames", (), "Batches whose digest"
                                                                                " differed from the"
                                                                                " controller's: alert on it"),
    "ponor_subscription_applied_index": Metric(GAUGE, "index", (), "Last index applied to the image"),
    # A compactor. Read and written bytes include failed tasks: written / replaced is the write amplification
    # of compaction.
    "ponor_compactor_tasks_total": Metric(COUNTER, "tasks", ("outcome",), "Compaction tasks by outcome:"
                                                                          " done, settled, source_gone,"
                                                                          " stale_plan, fenced, unfit,"
                                                                          " damaged, refused, store_failed"),
    "ponor_compactor_read_bytes_total": Metric(COUNTER, "bytes", (), "Bytes read from objects for compaction; the bytes of indexes are estimated"),
    "ponor_compactor_written_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of objects written, without copies that the store itself made"),
    "ponor_compactor_replaced_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of objects replaced by"
                                                                         " commits"),
    "ponor_compactor_throttled_seconds_total": Metric(COUNTER, "seconds", (), "Time for which requests waited because of the byte and request rate limits, summed over all requests", recorded_per_unit=PER_SECOND_MS),
    "ponor_compactor_pace_ratio": Metric(GAUGE, "1", (), "Share of the rate limits in use: below 1 after the"
                                                         " store asked to slow down"),
    "ponor_compactor_pace_bytes_per_second": Metric(GAUGE, "bytes per second", (), "Current limit of bytes"
                                                                                   " read and written per"
                                                                                   " second: rises while"
                                                                                   " there is a backlog"),
    "ponor_compactor_progress_ratio": Metric(GAUGE, "1", (), "Finished share of the current task; 0 between"
                                                             " tasks"),
    "ponor_compactor_eta_seconds": Metric(GAUGE, "seconds", (), "Estimated remaining time of the current"
                                                                " task"),
    "ponor_compactor_held_bytes": Metric(GAUGE, "bytes", (), "Bytes of compaction_budget_bytes that the"
                                                             " current task holds"),
    "ponor_compactor_resident_max_bytes": Metric(GAUGE, "bytes", (), "Maximum resident memory of the"
                                                                     " process"),
    # The garbage collector.
    "ponor_gc_claimed_total": Metric(COUNTER, "objects", (), "Objects claimed for deletion"),
    "ponor_gc_deleted_total": Metric(COUNTER, "objects", (), "Objects deleted and confirmed"),
    "ponor_gc_wal_leftovers_total": Metric(COUNTER, "slots", (), "Slots put into write-ahead logs after the logs were closed"),
    "ponor_gc_collected_total": Metric(COUNTER, "objects", ("reason",), "Deletions by this collector:"
                                                                        " claimed (destroyed, or prepared"
                                                                        " and never committed), orphan"
                                                                        " (unknown to the metadata), upload"
                                                                        " (abandoned multipart upload), wal"
                                                                        " (late slots)"),
    "ponor_gc_orphan_bytes_total": Metric(COUNTER, "bytes", (), "Bytes of deleted orphans"),
    "ponor_gc_orphans_found": Metric(GAUGE, "objects", (), "Orphans found by the last finished"
                                                           " reconciliation, deleted or not"),
    "ponor_gc_report_only": Metric(GAUGE, "boolean", (), "1 while the collector deletes nothing because its"
                                                         " cluster's marker is missing or foreign, or an"
                                                         " object has an id that was not allocated yet"),
    "ponor_gc_strange_keys": Metric(GAUGE, "keys", (), "Keys below this cluster's prefixes that are not"
                                                       " valid object keys, as of the last finished reconciliation; they"
                                                       " are not deleted"),
    "ponor_gc_reconciliations_total": Metric(COUNTER, "passes", ("outcome",), "Reconciliations of the bucket"
                                                                              " with the metadata: done, or"
                                                                              " failed and resumed later"),
    "ponor_gc_delete_keys_per_second": Metric(GAUGE, "keys per second", (), "Current limit of deletions per"
                                                                            " second: halved when the store"
                                                                            " asks to slow down"),
    "ponor_gc_failures_total": Metric(COUNTER, "sweeps", (), "Claims whose objects could not be deleted or"
                                                             " confirmed; they are claimed again later"),
}  # fmt: skip

SPANS: Final[dict[str, str]] = {
    # One Kafka request: ponor_broker.
    "ponor.kafka.request": "SERVER: one request, from its frame to its response (messaging.*,"
    " network.peer.address; ponor.kafka.api names it)",
    "ponor.produce.validate": "Validation of one partition's batch: CRC, counts, sizes, timestamps",
    "ponor.produce.append": "Sequence check, offsets, and the append to the stream",
    # One partition's move, in the trace of its initiator: ponor_broker.
    "ponor.move.depart": "The source's part, from the start of the move to its end",
    "ponor.move.residue": "Upload of data that is only in the write-ahead log and in memory, while the partition still serves",
    "ponor.move.drain": "Appends are refused: pending ones become durable, the clean checkpoint is written",
    "ponor.move.tail": "Upload of the data that arrived since the residue's upload",
    "ponor.move.close": "Streams closed and the election requested, until this broker's image shows it",
    "ponor.move.open": "The target's part, from the election to serving",
    # Storage: s3stream.
    "ponor.wal.commit": "From an append to the end of the fdatasync that made it durable, with everything in"
    " the same group commit",
    "ponor.recovery": "Start-up of a broker's storage: WAL replay, upload, close",
    "ponor.upload": "One sealed block from prepare to commit; in the trace of its oldest sampled append,"
    " linked to all of them",
    "ponor.fetch.objects": "A fetch that read from the object store",
    "ponor.fetch.find": "Lookup of the objects that hold these offsets, in the read index of the local image; the span records the image's lag",
    "ponor.object_store.put": "CLIENT: one put (rpc.*, aws.s3.*)",
    "ponor.object_store.get": "CLIENT: one ranged get of an index or of blocks (rpc.*, aws.s3.*)",
    # Sessions: ponor_metadata and ponor_controller.
    "ponor.session.operation": "CLIENT: one operation at the controller, including retries (rpc.*)",
    "ponor.controller.move": "A move that the controller ended, until its commit",
    "ponor.controller.drain": "A wave of moves away from a draining broker; the moves belong to its trace",
    "ponor.controller.balance": "Moves started by the balancer; they belong to its trace",
    "ponor.controller.operation": "SERVER: one operation from the session to its committed result (rpc.*)",
}
