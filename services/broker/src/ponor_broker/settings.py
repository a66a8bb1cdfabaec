"""Settings of the broker: every bound and every time, with its default.

A setting that Kafka also has names Kafka's setting in its documentation. Identity and addresses are
in `options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor_runtime.settings import setting
from s3stream.settings import StorageSettings

from ponor_broker.groups.settings import GroupSettings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Values that an operator may choose with `--set NAME=VALUE`; see each field's `doc`."""

    # Listener
    connections_max: int = setting(
        10_000, minimum=1, maximum=1_000_000, unit="connections", doc="max.connections: clients at a time"
    )
    connections_per_address_max: int = setting(
        1_000_000,
        minimum=1,
        maximum=1_000_000,
        unit="connections",
        doc="max.connections.per.ip: clients at a time from one address; set it where clients are not behind one proxy",
    )
    request_bytes_max: int = setting(
        104_857_600,
        minimum=KIB,
        maximum=2_147_483_647,
        unit="bytes",
        doc="socket.request.max.bytes: largest request",
    )
    control_request_bytes_max: int = setting(
        4 * MIB,
        minimum=KIB,
        maximum=2_147_483_647,
        unit="bytes",
        doc="largest request that is no Produce: it is decoded into objects many times its size",
    )
    receive_bytes_max: int = setting(
        256 * MIB,
        minimum=MIB,
        maximum=1024 * GIB,
        unit="bytes",
        doc="requests that are arriving, over all clients",
    )
    in_flight_bytes_max: int = setting(
        256 * MIB, minimum=MIB, maximum=1024 * GIB, unit="bytes", doc="requests in process, over all clients"
    )
    connection_idle_ms_max: int = setting(
        600_000,
        minimum=100,
        maximum=DAY_MS,
        unit="ms",
        doc="connections.max.idle.ms: silence before a client is dropped",
    )
    request_stall_ms_max: int = setting(
        30_000,
        minimum=100,
        maximum=DAY_MS,
        unit="ms",
        doc="silence in the middle of a request before a client is dropped",
    )

    # Produce
    message_bytes_max: int = setting(
        1_048_588,
        minimum=61,
        maximum=2_147_483_647,
        unit="bytes",
        doc="message.max.bytes: largest record batch, where the topic has no max.message.bytes",
    )
    timestamp_after_ms_max: int = setting(
        3_600_000,
        minimum=0,
        maximum=(1 << 63) - 1,
        unit="ms",
        doc="log.message.timestamp.after.max.ms: how far ahead of the broker's clock a record may be",
    )
    decompressed_batch_bytes_max: int = setting(
        64 * MIB,
        minimum=MIB,
        maximum=2_147_483_647,
        unit="bytes",
        doc="what a compressed batch may grow to while its records are checked; above it the batch is refused",
    )
    producer_expiration_ms: int = setting(
        DAY_MS,
        minimum=1_000,
        maximum=365 * DAY_MS,
        unit="ms",
        doc="producer.id.expiration.ms: silence after which a producer is forgotten",
    )
    producers_per_partition_max: int = setting(
        10_000,
        minimum=1,
        maximum=1_000_000,
        unit="producers",
        doc="producers remembered per partition; the most silent goes first",
    )
    producer_ids_per_block: int = setting(
        1_000, minimum=1, maximum=10_000, unit="ids", doc="producer ids taken from the controller at a time"
    )

    # Fetch
    fetch_bytes_max: int = setting(
        57_671_680,
        minimum=KIB,
        maximum=2_147_483_647,
        unit="bytes",
        doc="fetch.max.bytes: largest answer, first batch excepted",
    )
    fetch_answers_bytes_max: int = setting(
        512 * MIB,
        minimum=MIB,
        maximum=1024 * GIB,
        unit="bytes",
        doc="fetch answers being made, over all clients; above it answers shrink to a batch",
    )
    fetch_wait_ms_max: int = setting(
        300_000,
        minimum=0,
        maximum=DAY_MS,
        unit="ms",
        doc="longest wait of a fetch, whatever the client asks for",
    )
    parked_fetches_max: int = setting(
        20_000,
        minimum=1,
        maximum=1_000_000,
        unit="requests",
        doc="fetches that wait for data; above it they are answered at once",
    )
    fetch_partitions_max: int = setting(
        100_000,
        minimum=1,
        maximum=10_000_000,
        unit="partitions",
        doc="partitions in one fetch; above it the client is disconnected",
    )
    fetch_session_slots_max: int = setting(
        1_000,
        minimum=0,
        maximum=1_000_000,
        unit="sessions",
        doc="max.incremental.fetch.session.cache.slots: fetch sessions remembered; the next ones send full fetches",
    )
    fetch_session_bytes_max: int = setting(
        16 * MIB,
        minimum=KIB,
        maximum=GIB,
        unit="bytes",
        doc="memory for the partitions of one fetch session; above it the client gets none",
    )
    fetch_sessions_bytes_max: int = setting(
        128 * MIB,
        minimum=KIB,
        maximum=64 * GIB,
        unit="bytes",
        doc="memory for the partitions of all fetch sessions; above it sessions are evicted or refused",
    )
    cold_reads_in_flight_max: int = setting(
        16,
        minimum=1,
        maximum=1_024,
        unit="reads",
        doc="partitions read from the object store at the same time",
    )
    cold_reads_waiting_max: int = setting(
        4_096,
        minimum=1,
        maximum=1_000_000,
        unit="reads",
        doc="reads that wait for that; above it clients are told to try again",
    )
    cold_read_bytes_max: int = setting(
        2 * MIB,
        minimum=KIB,
        maximum=GIB,
        unit="bytes",
        doc="most bytes that one read from the object store brings a fetch, first batch excepted; the client asks again for more",
    )
    cold_read_bytes_per_s_max: int = setting(
        256 * MIB,
        minimum=0,
        maximum=1024 * GIB,
        unit="bytes/s",
        doc="speed of reads from the object store on behalf of fetches, over all clients; 0: any",
    )
    cold_read_ms_max: int = setting(
        20_000,
        minimum=100,
        maximum=600_000,
        unit="ms",
        doc="longest read from the object store before the client is told to try again",
    )

    # Partitions that move
    park_ms_max: int = setting(
        300,
        minimum=0,
        maximum=10_000,
        unit="ms",
        doc="longest wait of a request until a partition on the move serves again, here or elsewhere; then the client is told to look for its leader. Requests without acknowledgement wait at least 5 s, because a refusal loses their records. 0: none waits",
    )
    park_bytes_max: int = setting(
        64 * MIB,
        minimum=0,
        maximum=GIB,
        unit="bytes",
        doc="requests that wait so, over all partitions; above it clients are told at once",
    )

    # Partitions and topics
    segment_bytes: int = setting(
        GIB,
        minimum=KIB,
        maximum=2_147_483_647,
        unit="bytes",
        doc="log.segment.bytes, where the topic has no segment.bytes",
    )
    segment_ms: int = setting(
        7 * DAY_MS,
        minimum=1_000,
        maximum=1 << 62,
        unit="ms",
        doc="log.roll.ms, where the topic has no segment.ms",
    )
    maintenance_interval_ms: int = setting(
        5_000,
        minimum=10,
        maximum=DAY_MS,
        unit="ms",
        doc="log.retention.check.interval.ms: shortest pause between two rounds of retention and other housekeeping; without work there is none",
    )
    cleaner_interval_ms: int = setting(
        15_000,
        minimum=10,
        maximum=DAY_MS,
        unit="ms",
        doc="log.cleaner.backoff.ms: rest of the log cleaner when no compacted partition has to be cleaned",
    )
    cleaner_map_bytes_max: int = setting(
        64 * MIB,
        minimum=KIB,
        maximum=64 * GIB,
        unit="bytes",
        doc="log.cleaner.dedupe.buffer.size: memory for the keys of one cleaning, 24 bytes each; with more keys a partition is cleaned in several passes",
    )
    cleaner_io_bytes_per_s_max: int = setting(
        32 * MIB,
        minimum=0,
        maximum=1024 * GIB,
        unit="bytes/s",
        doc="log.cleaner.io.max.bytes.per.second: speed of the log cleaner, bytes read and written together; 0: any",
    )
    cleaner_busy_percent_max: int = setting(
        25,
        minimum=1,
        maximum=100,
        unit="%",
        doc="share of the event loop that the log cleaner takes while it works; clients have the rest",
    )
    auto_create_topics: bool = setting(
        True, doc="auto.create.topics.enable: Metadata of an unknown topic makes it"
    )
    num_partitions: int = setting(
        -1,
        minimum=-1,
        maximum=10_000,
        unit="partitions",
        doc="num.partitions of topics whose creator names no number; -1: the controller's default",
    )
    controller_timeout_ms: int = setting(
        15_000,
        minimum=100,
        maximum=600_000,
        unit="ms",
        doc="longest wait for the controller on behalf of a client",
    )
    self_fence_ms: int = setting(
        -1,
        minimum=-1,
        maximum=3_600_000,
        unit="ms",
        doc="age of metadata, or silence of the leading controller, after which this broker answers no client; -1: two thirds of the controllers' session timeout with a write-ahead log in the object store, never with one in a file; 0: never",
    )
    drain_ms_max: int = setting(
        60_000,
        minimum=0,
        maximum=3_600_000,
        unit="ms",
        doc="longest wait at a stop for partitions to move to other brokers, if there are any; 0: they are not moved",
    )
    takeovers_in_flight_max: int = setting(
        4,
        minimum=1,
        maximum=64,
        unit="logs",
        doc="write-ahead logs of brokers that died which this one recovers at a time",
    )
    takeover_bytes_max: int = setting(
        256 * MIB,
        minimum=MIB,
        maximum=64 * GIB,
        unit="bytes",
        doc="memory for the records of such logs, over all that are recovered at a time",
    )
    load_report_ms: int = setting(
        1_000,
        minimum=200,
        maximum=600_000,
        unit="ms",
        doc="pause between two reports to the balancer while there is traffic; without traffic there is none",
    )
    shutdown_upload_ms_max: int = setting(
        2_500,
        minimum=0,
        maximum=600_000,
        unit="ms",
        doc="longest upload at a stop; what is left stays in the write-ahead log",
    )

    storage: StorageSettings = field(default_factory=StorageSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
