"""Settings of the transaction coordinator, with Kafka's defaults where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Bounds and delays of transactions. Each `doc` names Kafka's setting, if there is one."""

    transaction_topic_partitions: int = setting(
        50,
        within=(1, 1_000),
        doc="Kafka's transaction.state.log.num.partitions. It has no effect after __transaction_state was "
        "created.",
    )
    transaction_timeout_ms_max: int = setting(
        900_000,
        within=(1, 2_147_483_647),
        doc="Kafka's transaction.max.timeout.ms: longest timeout that a transactional producer may request.",
    )
    transaction_partitions_max: int = setting(
        10_000,
        within=(1, 50_000),
        doc="Partitions of one transaction. A request for further ones gets INVALID_REQUEST.",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        within=(1, 1 << 62),
        doc="Kafka's transactional.id.expiration.ms: how long an unused transactional id is kept.",
    )
    transactional_id_expiry_interval_ms: int = setting(
        3_600_000,
        within=(1, 86_400_000),
        doc="Kafka's transaction.remove.expired.transaction.cleanup.interval.ms: interval of the search for "
        "expired transactional ids.",
    )
    transactions_memory_bytes_max: int = setting(
        256 << 20,
        within=(64 << 10, 1 << 40),
        doc="Memory for the transactional ids of this broker and the partitions of their transactions. When "
        "it is used up, requests with new ids or partitions get COORDINATOR_NOT_AVAILABLE.",
    )
    transaction_load_bytes_max: int = setting(
        5 << 20,
        within=(1 << 10, 64 << 20),
        doc="Kafka's transaction.state.log.load.buffer.size: bytes read at a time while a partition of "
        "__transaction_state is loaded.",
    )
    transaction_writes_in_flight_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        doc="Records of one partition of __transaction_state that are not durable yet. Further requests get "
        "COORDINATOR_NOT_AVAILABLE.",
    )
    transaction_write_timeout_ms: int = setting(
        5_000,
        within=(1, 300_000),
        doc="Longest wait of a request for its record to become durable. After it, the client gets "
        "COORDINATOR_NOT_AVAILABLE, and the change may still succeed.",
    )
    transaction_wait_ms_max: int = setting(
        2_000,
        within=(0, 60_000),
        doc="How long a request waits until the partition of __transaction_state for its transactional id is "
        "created, opened and loaded. After it, the client gets COORDINATOR_NOT_AVAILABLE or "
        "COORDINATOR_LOAD_IN_PROGRESS. 0: no wait.",
    )
    transaction_add_retry_ms: int = setting(
        2,
        within=(1, 60_000),
        doc="Kafka's add.partitions.to.txn.retry.backoff.ms: pause before a partition's leader repeats a "
        "request to add the partition, because the producer's previous transaction is not complete. Each "
        "later pause is twice the time that the request has waited so far.",
    )
    transaction_add_retry_ms_max: int = setting(
        1_000,
        within=(0, 60_000),
        doc="Kafka's add.partitions.to.txn.retry.backoff.max.ms: how long a partition's leader repeats a "
        "request to add the partition. After it, the client gets CONCURRENT_TRANSACTIONS and retries.",
    )
    transaction_rewrite_log_bytes_min: int = setting(
        256 << 10,
        within=(1 << 10, 1 << 40),
        doc="A partition of __transaction_state is rewritten only when its log has at least this many bytes.",
    )
    transaction_rewrite_ratio: int = setting(
        4,
        within=(2, 1_000),
        doc="A partition of __transaction_state is rewritten when its log is this many times as long as the "
        "result of the last rewrite.",
    )
