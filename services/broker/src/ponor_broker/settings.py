"""Settings of the broker: every bound and every time, with its default.

If Kafka has the same setting, its name is in the setting's `doc`. Identity and addresses are in `options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor_runtime.settings import setting
from s3stream.settings import StorageSettings

from ponor_broker.groups.settings import GroupSettings
from ponor_broker.security.settings import SecuritySettings
from ponor_broker.share_partitions.settings import ShareSettings
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.transactions.settings import TransactionSettings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Values that an operator may choose with `--set NAME=VALUE`; see each field's `doc`."""

    # Listener
    connections_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        unit="connections",
        doc="Kafka's max.connections: open client connections.",
    )
    connections_per_address_max: int = setting(
        1_000_000,
        within=(1, 1_000_000),
        unit="connections",
        doc="Kafka's max.connections.per.ip: open client connections from one address. Lower it "
        "unless all clients share one proxy.",
    )
    request_bytes_max: int = setting(
        104_857_600, within=(KIB, 2_147_483_647), doc="Kafka's socket.request.max.bytes: largest request."
    )
    control_request_bytes_max: int = setting(
        4 * MIB,
        within=(KIB, 2_147_483_647),
        doc="Largest request other than Produce. Decoding such a request can need many times its "
        "size in memory.",
    )
    receive_bytes_max: int = setting(
        256 * MIB, within=(MIB, 1024 * GIB), doc="Requests that are still arriving, all clients together."
    )
    in_flight_bytes_max: int = setting(
        256 * MIB,
        within=(MIB, 1024 * GIB),
        doc="Requests received and not answered yet, all clients together.",
    )
    pending_connections_max: int = setting(
        1_000,
        within=(1, 1_000_000),
        unit="connections",
        doc="Clients whose TLS handshake or SASL authentication is not complete. At the limit, the oldest"
        " of them is disconnected.",
    )
    authentication_ms_max: int = setting(
        10_000,
        within=(100, 600_000),
        doc="Longest TLS handshake and SASL authentication. A client that needs longer is disconnected.",
    )
    connection_idle_ms_max: int = setting(
        600_000,
        within=(100, DAY_MS),
        doc="Kafka's connections.max.idle.ms: idle time after which a client is disconnected.",
    )
    request_stall_ms_max: int = setting(
        30_000,
        within=(100, DAY_MS),
        doc="A client that sends part of a request and then nothing for this time is disconnected.",
    )

    # Produce
    message_bytes_max: int = setting(
        1_048_588,
        within=(61, 2_147_483_647),
        doc="Kafka's message.max.bytes: largest record batch of topics without max.message.bytes.",
    )
    timestamp_after_ms_max: int = setting(
        3_600_000,
        within=(0, (1 << 63) - 1),
        doc="Kafka's log.message.timestamp.after.max.ms: how far a record's timestamp may be "
        "ahead of the broker's clock.",
    )
    decompressed_batch_bytes_max: int = setting(
        64 * MIB,
        within=(MIB, 2_147_483_647),
        doc="Largest decompressed size of a batch whose records are validated. Larger batches are refused.",
    )
    producer_expiration_ms: int = setting(
        DAY_MS,
        within=(1_000, 365 * DAY_MS),
        doc="Kafka's producer.id.expiration.ms: idle time after which the state of an idempotent "
        "producer is deleted.",
    )
    producers_per_partition_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        unit="producers",
        doc="Idempotent producers per partition. At the limit, the state of the least recently "
        "used producer is deleted.",
    )
    producer_ids_per_block: int = setting(
        1_000,
        within=(1, 10_000),
        unit="ids",
        doc="Producer ids that the broker reserves at the controller at a time.",
    )

    # Fetch
    fetch_bytes_max: int = setting(
        57_671_680,
        within=(KIB, 2_147_483_647),
        doc="Kafka's fetch.max.bytes: largest Fetch response. A larger first batch is sent alone.",
    )
    fetch_answers_bytes_max: int = setting(
        512 * MIB,
        within=(MIB, 1024 * GIB),
        doc="Fetch responses in memory, all clients together. Above it, responses shrink to one batch.",
    )
    fetch_wait_ms_max: int = setting(
        300_000,
        within=(0, DAY_MS),
        doc="Longest wait of a Fetch for data; limits the client's max_wait_ms. Requests above 8 KiB wait at"
        " most 500 ms.",
    )
    parked_fetches_max: int = setting(
        20_000,
        within=(1, 1_000_000),
        unit="requests",
        doc="Fetches that wait for data. Further ones get an empty response immediately.",
    )
    fetch_partitions_max: int = setting(
        100_000,
        within=(1, 10_000_000),
        unit="partitions",
        doc="Partitions in one Fetch. A client that names more is disconnected.",
    )
    fetch_session_slots_max: int = setting(
        1_000,
        within=(0, 1_000_000),
        unit="sessions",
        doc="Kafka's max.incremental.fetch.session.cache.slots: cached fetch sessions. Clients "
        "without a session send full fetches.",
    )
    fetch_session_bytes_max: int = setting(
        16 * MIB,
        within=(KIB, GIB),
        doc="Memory for the partitions of one fetch session. Above it, the client gets no session.",
    )
    fetch_sessions_bytes_max: int = setting(
        128 * MIB,
        within=(KIB, 64 * GIB),
        doc="Memory for the partitions of all fetch sessions. Above it, sessions are evicted or refused.",
    )
    cold_reads_in_flight_max: int = setting(
        16,
        within=(1, 1_024),
        unit="reads",
        doc="Partitions that are read from the object store at the same time.",
    )
    cold_reads_waiting_max: int = setting(
        4_096,
        within=(1, 1_000_000),
        unit="reads",
        doc="Partitions that wait to be read from the object store. Further ones get a retriable error.",
    )
    cold_read_bytes_max: int = setting(
        2 * MIB,
        within=(KIB, GIB),
        doc="Bytes that a Fetch gets from one read of the object store; a larger first batch is read whole.",
    )
    cold_read_bytes_per_s_max: int = setting(
        256 * MIB,
        within=(0, 1024 * GIB),
        doc="Rate of reads from the object store for Fetches, all clients together; 0: no limit.",
    )
    cold_read_ms_max: int = setting(
        20_000,
        within=(100, 600_000),
        doc="Longest read from the object store for a Fetch. After it, the client gets a retriable error.",
    )

    # Partitions that move
    park_ms_max: int = setting(
        300,
        within=(0, 10_000),
        doc="How long a request waits for a partition that is moving. After it, the client gets a "
        "retriable error and looks up the leader. A Produce with acks=0 waits at least 5 s, "
        "because a refusal loses its records. 0: no wait.",
    )
    park_bytes_max: int = setting(
        64 * MIB,
        within=(0, GIB),
        doc="Requests that wait for moving partitions, all partitions together. Further ones are "
        "refused immediately.",
    )

    # Partitions and topics
    segment_bytes: int = setting(
        GIB, within=(KIB, 2_147_483_647), doc="Kafka's log.segment.bytes, for topics without segment.bytes."
    )
    segment_ms: int = setting(
        7 * DAY_MS, within=(1_000, 1 << 62), doc="Kafka's log.roll.ms, for topics without segment.ms."
    )
    maintenance_interval_ms: int = setting(
        5_000,
        within=(10, DAY_MS),
        doc="Kafka's log.retention.check.interval.ms: shortest interval of retention and other "
        "maintenance. Rounds without work are skipped.",
    )
    cleaner_interval_ms: int = setting(
        15_000,
        within=(10, DAY_MS),
        doc="Kafka's log.cleaner.backoff.ms: pause of the log cleaner when no compacted partition "
        "needs cleaning.",
    )
    cleaner_map_bytes_max: int = setting(
        64 * MIB,
        within=(KIB, 64 * GIB),
        doc="Kafka's log.cleaner.dedupe.buffer.size: memory for the keys of one cleaning pass, 24 "
        "bytes per key. A partition with more keys needs several passes.",
    )
    cleaner_io_bytes_per_s_max: int = setting(
        32 * MIB,
        within=(0, 1024 * GIB),
        doc="Kafka's log.cleaner.io.max.bytes.per.second: bytes that the log cleaner reads and "
        "writes per second; 0: no limit.",
    )
    cleaner_busy_percent_max: int = setting(
        25, within=(1, 100), doc="Share of the event loop's time that the log cleaner may use."
    )
    auto_create_topics: bool = setting(
        True, doc="Kafka's auto.create.topics.enable: a Metadata request for an unknown topic creates it."
    )
    num_partitions: int = setting(
        -1,
        within=(-1, 1_000),
        unit="partitions",
        doc="Kafka's num.partitions: partitions of a topic that is created without a number; -1: "
        "the controller's default_partitions.",
    )
    controller_timeout_ms: int = setting(
        15_000,
        within=(100, 600_000),
        doc="Longest wait for the controller while a client waits for the response.",
    )
    self_fence_ms: int = setting(
        -1,
        within=(-1, 3_600_000),
        doc="The broker serves no partition while its metadata are older than this or the leading "
        "controller has been silent for longer. -1: two thirds of the controllers' "
        "session_timeout_ms with an object WAL, disabled with a file WAL. 0: disabled.",
    )
    drain_ms_max: int = setting(
        60_000,
        within=(0, 3_600_000),
        doc="How long a stopping broker waits for its partitions to move to other brokers; 0: no drain.",
    )
    takeovers_in_flight_max: int = setting(
        4,
        within=(1, 64),
        unit="logs",
        doc="Write-ahead logs of failed brokers that this broker recovers at the same time.",
    )
    takeover_bytes_max: int = setting(
        256 * MIB,
        within=(MIB, 64 * GIB),
        doc="Memory for records of the logs that this broker recovers for failed brokers.",
    )
    load_report_ms: int = setting(
        1_000,
        within=(200, 600_000),
        doc="Interval of load reports to the balancer. A broker without traffic sends none.",
    )
    shutdown_upload_ms_max: int = setting(
        2_500,
        within=(0, 600_000),
        doc="Longest upload at a stop. The remaining data stays in the write-ahead log.",
    )

    storage: StorageSettings = field(default_factory=StorageSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    share_state: ShareStateSettings = field(default_factory=ShareStateSettings)
    share: ShareSettings = field(default_factory=ShareSettings)
