"""The registry of metric and span names: nothing is measured under a name that is not in these tables.

What lives here: two plain tables, one row a name. Names are what the Prometheus endpoint shows, letter by letter. A name, once released, keeps
its meaning; `_total` ends counters, the unit stands before it. Histograms state their bucket bounds here, so that two processes can
always be added up.
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
    """One row: kind, unit, label names in order, meaning; upper bucket bounds for histograms."""

    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    doc: str
    buckets: tuple[int, ...] = ()


COUNTER: Final = MetricKind.COUNTER
GAUGE: Final = MetricKind.GAUGE
HISTOGRAM: Final = MetricKind.HISTOGRAM

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
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)
SIZES: Final = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)

METRICS: Final[dict[str, Metric]] = {
    # The object store: s3stream.stores.
    "ponor_object_store_requests_total": Metric(COUNTER, "requests", ("op", "class"), "Calls that left for the store, every retry and every part counted; class is put, get or delete, as stores bill"),
    "ponor_object_store_bytes_total": Metric(COUNTER, "bytes", ("direction",), "Payload bytes to (write) and from (read) the store"),
    "ponor_object_store_errors_total": Metric(COUNTER, "requests", ("op", "error"), "Calls that failed, by error class"),
    "ponor_object_store_retries_total": Metric(COUNTER, "requests", ("op",), "Calls made again after a retriable error"),
    "ponor_object_store_request_us": Metric(HISTOGRAM, "us", ("op",), "Duration of one call", MICROSECONDS),
    # The journal, by its directory's role: ponor_journal.
    "ponor_journal_frames_total": Metric(COUNTER, "frames", ("journal",), "Group commits written and synced"),
    "ponor_journal_entries_total": Metric(COUNTER, "entries", ("journal",), "Entries made durable"),
    "ponor_journal_bytes_total": Metric(COUNTER, "bytes", ("journal",), "Bytes written to disk, headers and padding included"),
    "ponor_journal_sync_us": Metric(HISTOGRAM, "us", ("journal",), "Write and sync of one group commit", MICROSECONDS),
    "ponor_journal_queued_bytes": Metric(GAUGE, "bytes", ("journal",), "Entries taken and not yet durable"),
    "ponor_journal_retained_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes on disk above the trim point"),
    "ponor_journal_segments": Metric(GAUGE, "segments", ("journal", "state"), "Segment files, live and spare"),
    "ponor_journal_recovered_entries": Metric(GAUGE, "entries", ("journal",), "Entries found at start-up"),
    "ponor_journal_waits_for_space": Metric(
        GAUGE, "boolean", ("journal",), "1 while entries wait because the disk is full"
    ),
    "ponor_journal_torn_bytes": Metric(GAUGE, "bytes", ("journal",), "Bytes of a torn tail that start-up cut off"),
    # The write-ahead log and recovery: s3stream.
    "ponor_wal_recovery_us": Metric(GAUGE, "us", (), "How long the last recovery took"),
    "ponor_wal_recovered_bytes": Metric(GAUGE, "bytes", (), "Bytes that the last recovery uploaded"),
    "ponor_wal_append_us": Metric(HISTOGRAM, "us", (), "From append to acknowledgement", MICROSECONDS),
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
    "ponor_upload_us": Metric(HISTOGRAM, "us", ("stage",), "Stages of an upload: prepare, put, commit", MICROSECONDS),
    # The Kafka listener and its partitions: ponor_broker.
    "ponor_kafka_requests_total": Metric(COUNTER, "requests", ("api",), "Requests answered"),
    "ponor_kafka_request_us": Metric(HISTOGRAM, "us", ("api",), "From the whole request read to the response written", MICROSECONDS),
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
    "ponor_controller_commit_us": Metric(HISTOGRAM, "us", (), "From proposal to committed", MICROSECONDS),
    "ponor_controller_sessions": Metric(GAUGE, "sessions", (), "Node sessions that are alive"),
    "ponor_controller_suspected_nodes": Metric(GAUGE, "nodes", (), "Registered brokers that have been silent for longer than the session timeout"),
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
    "ponor_controller_raft_last_index": Metric(GAUGE, "index", (), "Index of the last batch in the log, committed or not"),
    "ponor_controller_raft_unsynced_writes": Metric(GAUGE, "writes", (), "Writes to the log that are not durable yet"),
    "ponor_controller_peers_connected": Metric(GAUGE, "controllers", (), "Other controllers to which a stream is open"),
    "ponor_controller_peer_refusals_total": Metric(COUNTER, "connections", ("reason",), "Other controllers that refused this one: wrong cluster, directory or incarnation"),
    # Sessions and subscriptions, as nodes and tools see them: ponor_metadata.
    "ponor_session_reconnects_total": Metric(COUNTER, "connections", (), "Sessions with a controller that ended and were made anew"),
    "ponor_session_operations_in_flight": Metric(GAUGE, "operations", (), "Operations without an answer"),
    "ponor_subscription_reconnects_total": Metric(COUNTER, "connections", (), "Subscriptions that ended and were made anew"),
    "ponor_subscription_snapshots_total": Metric(COUNTER, "snapshots", (), "Images that arrived whole, not as batches"),
    "ponor_subscription_digest_mismatches_total": Metric(COUNTER, "frames", (), "Batches whose digest differed from the controller's: an alarm"),
    "ponor_subscription_applied_index": Metric(GAUGE, "index", (), "Newest index that the image shows"),
    # The garbage collector.
    "ponor_gc_claimed_total": Metric(COUNTER, "objects", (), "Objects claimed for deletion"),
    "ponor_gc_deleted_total": Metric(COUNTER, "objects", (), "Objects deleted and confirmed"),
    "ponor_gc_failures_total": Metric(COUNTER, "sweeps", (), "Claims whose objects could not be deleted or confirmed; claimed again later"),
}  # fmt: skip

SPANS: Final[dict[str, str]] = {
    # One Kafka request: ponor_broker.
    "ponor.kafka.request": "SERVER: one request, from its frame to its answer (messaging.*, network.peer.address; ponor.kafka.api names it)",
    "ponor.produce.validate": "One partition's batch checked: CRC, counts, sizes, timestamps",
    "ponor.produce.append": "Sequence check, offsets, and the hand-over to the stream",
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
    "ponor.controller.operation": "SERVER: one operation from the session to its result, committed (rpc.*)",
}
