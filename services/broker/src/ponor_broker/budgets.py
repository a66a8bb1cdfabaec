"""Table of the broker's resource bounds, and a metric that shows their limits.

docs/operations/budgets.md is generated from this table. The modules that use a budget enforce it.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from ponor_runtime.settings import describe_values
from ponor_runtime.telemetry import Telemetry

from ponor_broker.settings import BrokerSettings


class Budget(NamedTuple):
    """One bound: its setting, the metric of its use, and the behaviour when it is reached."""

    what: str
    setting: str
    used: str
    at_the_bound: str


BUDGETS: Final = (
    Budget(
        "client connections",
        "connections_max",
        "ponor_kafka_connections",
        "a new connection is closed immediately;"
        " `ponor_kafka_connections_refused_total{reason=connections_max}`",
    ),
    Budget(
        "client connections of one address",
        "connections_per_address_max",
        "ponor_kafka_connections",
        "a new connection of that address is closed immediately; `{reason=connections_per_address_max}`",
    ),
    Budget(
        "keys in the log cleaner's map",
        "cleaner_map_bytes_max",
        "ponor_cleaner_map_bytes",
        "a partition is cleaned in several passes",
    ),
    Budget(
        "requests being received",
        "receive_bytes_max",
        "ponor_kafka_receiving_bytes",
        "a request waits before its first byte is read: TCP backpressure",
    ),
    Budget(
        "requests being processed",
        "in_flight_bytes_max",
        "ponor_kafka_inflight_bytes",
        "connections are not read until answers have been sent: TCP backpressure. Requests above 8 KiB other"
        " than Produce may use at most half: a quarter for APIs that take seconds at most, such as Fetch and"
        " OffsetCommit, and a quarter for APIs that may take longer, such as CreateTopics and ListOffsets",
    ),
    Budget(
        "one request",
        "request_bytes_max",
        "ponor_kafka_connections_refused_total",
        "the connection is closed, as Kafka does",
    ),
    Budget(
        "one request other than Produce",
        "control_request_bytes_max",
        "ponor_kafka_connections_refused_total",
        "the connection is closed: decoding many small elements would need far more memory than the request",
    ),
    Budget(
        "decompressed size of a batch during validation",
        "decompressed_batch_bytes_max",
        "ponor_kafka_requests_total",
        "the batch is refused: MESSAGE_TOO_LARGE",
    ),
    Budget(
        "appended records in memory",
        "log_cache_bytes_max",
        "ponor_log_cache_bytes",
        "appends wait, then are refused with a retriable error; uploaded records are evicted first",
    ),
    Budget(
        "appends waiting for memory",
        "append_waiting_bytes_max",
        "ponor_log_cache_bytes",
        "a retriable error: KAFKA_STORAGE_ERROR",
    ),
    Budget(
        "write-ahead log on disk",
        "wal_bytes_max",
        "ponor_journal_retained_bytes",
        "uploads are forced; appends wait, then are refused with a retriable error",
    ),
    Budget(
        "entries queued for the disk",
        "wal_queue_bytes_max",
        "ponor_journal_queued_bytes",
        "appends wait",
    ),
    Budget(
        "blocks read from objects",
        "block_cache_bytes_max",
        "ponor_block_cache_bytes",
        "the least used blocks are evicted; reads wait for space in order",
    ),
    Budget(
        "indexes read from objects",
        "index_cache_bytes_max",
        "ponor_block_cache_bytes",
        "the least used indexes are evicted",
    ),
    Budget(
        "fetches waiting for data",
        "parked_fetches_max",
        "ponor_fetches_parked",
        "further fetches get an empty answer immediately",
    ),
    Budget(
        "fetch answers in memory",
        "fetch_answers_bytes_max",
        "ponor_fetch_answers_bytes",
        "answers shrink to one batch until clients have read earlier answers",
    ),
    Budget(
        "incremental fetch sessions",
        "fetch_session_slots_max",
        "ponor_fetch_sessions",
        "the least recently used session is evicted, or the client gets no session and sends full fetches",
    ),
    Budget(
        "memory of fetch sessions",
        "fetch_sessions_bytes_max",
        "ponor_fetch_session_bytes",
        "as for the number of sessions",
    ),
    Budget(
        "concurrent reads of old data",
        "cold_reads_in_flight_max",
        "ponor_cold_reads",
        "reads wait in order",
    ),
    Budget(
        "waiting reads of old data",
        "cold_reads_waiting_max",
        "ponor_cold_reads",
        "a retriable error: KAFKA_STORAGE_ERROR",
    ),
    Budget(
        "rate of reads of old data",
        "cold_read_bytes_per_s_max",
        "ponor_cold_read_bytes_total",
        "reads wait for tokens",
    ),
    Budget(
        "consumer groups",
        "groups_max",
        "ponor_groups",
        "a new group is refused: COORDINATOR_NOT_AVAILABLE",
    ),
    Budget(
        "members of a group",
        "group_members_max",
        "ponor_group_members",
        "a further member is refused: GROUP_MAX_SIZE_REACHED",
    ),
    Budget(
        "members of a consumer group with server-side assignment",
        "group_consumer_members_max",
        "ponor_group_members",
        "a further member is refused: GROUP_MAX_SIZE_REACHED",
    ),
    Budget(
        "members of a group that changes its protocol",
        "group_migration_members_max",
        "ponor_group_members",
        "the group keeps its protocol until it is empty",
    ),
    Budget(
        "memory of groups and offsets",
        "groups_memory_bytes_max",
        "ponor_groups_memory_bytes",
        "joins and commits that would need more are refused with a retriable error",
    ),
    Budget(
        "memory of transactional ids and the partitions of their transactions",
        "transactions_memory_bytes_max",
        "ponor_transactions_memory_bytes",
        "new ids and partitions are refused with a retriable error: COORDINATOR_NOT_AVAILABLE",
    ),
    Budget(
        "memory of the state of share partitions",
        "share_state_memory_bytes_max",
        "ponor_share_state_memory_bytes",
        "states that would grow are refused with a retriable error: COORDINATOR_NOT_AVAILABLE",
    ),
    Budget(
        "memory of calls that wait for share coordinators",
        "share_state_waiting_bytes_max",
        "ponor_share_state_calls_waiting",
        "further calls fail with COORDINATOR_NOT_AVAILABLE",
    ),
    Budget(
        "producer states per partition",
        "producers_per_partition_max",
        "ponor_partitions_open",
        "the state of the least recently used producer is deleted",
    ),
)
"""The rows of the generated page, in the order of a request's path from the socket on."""


MEMORY: Final = (
    "receive_bytes_max",
    "in_flight_bytes_max",
    "park_bytes_max",
    "decompressed_batch_bytes_max",
    "fetch_answers_bytes_max",
    "fetch_sessions_bytes_max",
    "cleaner_map_bytes_max",
    "takeover_bytes_max",
    "log_cache_bytes_max",
    "append_waiting_bytes_max",
    "wal_queue_bytes_max",
    "block_cache_bytes_max",
    "index_cache_bytes_max",
    "groups_memory_bytes_max",
    "transactions_memory_bytes_max",
    "share_state_memory_bytes_max",
    "share_state_waiting_bytes_max",
)
"""Memory bounds that can all be reached at the same time."""


def memory_bytes(settings: BrokerSettings) -> int:
    """Return the memory that all budgets together allow, without the process itself and its metadata
    image.
    """
    values = {row.name: value for row, value in describe_values(settings)}
    return int(sum(_number(values[name]) for name in MEMORY))


def export_limits(telemetry: Telemetry, settings: BrokerSettings) -> None:
    """Export one gauge per budget, so that dashboards can show use as a share of the limit."""
    values = {row.name: value for row, value in describe_values(settings)}
    for budget in BUDGETS:
        telemetry.gauge("ponor_budget_limit", partial(_number, values[budget.setting]), budget=budget.setting)


def _number(value: object) -> float:
    assert isinstance(value, int), f"the bound of a budget is not a number: {value!r}"
    return float(value)
