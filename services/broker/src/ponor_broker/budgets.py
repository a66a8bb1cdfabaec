"""Everything of a broker that could grow, with what bounds it, what shows it, and what a client feels at the bound.

What lives here: the table, from which docs/operations/budgets.md is written, and the metric of the limits. The budgets themselves are
kept where they are spent.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from ponor_runtime.settings import describe_values
from ponor_runtime.telemetry import Telemetry

from ponor_broker.settings import BrokerSettings


class Budget(NamedTuple):
    """One bound: the setting that holds it, the metric that shows what is used of it, and what happens when it is reached."""

    what: str
    setting: str
    used: str
    at_the_bound: str


BUDGETS: Final = (
    Budget(
        "client connections",
        "connections_max",
        "ponor_kafka_connections",
        "a new connection is closed at once; `ponor_kafka_connections_refused_total{reason=connections_max}`",
    ),
    Budget(
        "client connections of one address",
        "connections_per_address_max",
        "ponor_kafka_connections",
        "likewise, for that address alone; `{reason=connections_per_address_max}`",
    ),
    Budget(
        "keys that the log cleaner knows at a time",
        "cleaner_map_bytes_max",
        "ponor_cleaner_map_bytes",
        "a partition is cleaned in several passes",
    ),
    Budget(
        "requests that are arriving",
        "receive_bytes_max",
        "ponor_kafka_receiving_bytes",
        "a request waits before its first byte is read: backpressure by TCP",
    ),
    Budget(
        "requests in process",
        "in_flight_bytes_max",
        "ponor_kafka_inflight_bytes",
        "connections are not read until answers have left: backpressure by TCP",
    ),
    Budget(
        "one request",
        "request_bytes_max",
        "ponor_kafka_connections_refused_total",
        "the connection is closed, as Kafka does",
    ),
    Budget(
        "one request that is no Produce",
        "control_request_bytes_max",
        "ponor_kafka_connections_refused_total",
        "the connection is closed: its many small elements would cost far more memory than bytes",
    ),
    Budget(
        "what a compressed batch may unpack to while it is checked",
        "decompressed_batch_bytes_max",
        "ponor_kafka_errors_total",
        "the batch is refused: MESSAGE_TOO_LARGE",
    ),
    Budget(
        "appended records in memory, un-uploaded ones first",
        "log_cache_bytes_max",
        "ponor_log_cache_bytes",
        "appends wait, then are refused with a retriable error; uploaded records are dropped for room",
    ),
    Budget(
        "appends that wait for room in memory",
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
        "entries on their way to the disk",
        "wal_queue_bytes_max",
        "ponor_journal_queued_bytes",
        "appends wait",
    ),
    Budget(
        "blocks read from objects",
        "block_cache_bytes_max",
        "ponor_block_cache_bytes",
        "the least used blocks are dropped; reads wait for room in their turn",
    ),
    Budget(
        "indexes read from objects",
        "index_cache_bytes_max",
        "ponor_block_cache_bytes",
        "the least used indexes are dropped",
    ),
    Budget(
        "fetches that wait for data",
        "parked_fetches_max",
        "ponor_fetches_parked",
        "further fetches are answered at once, empty",
    ),
    Budget(
        "fetch answers in memory",
        "fetch_answers_bytes_max",
        "ponor_fetch_answers_bytes",
        "answers shrink to one batch until clients have read theirs",
    ),
    Budget(
        "incremental fetch sessions",
        "fetch_session_slots_max",
        "ponor_fetch_sessions",
        "the stalest session leaves, or the client gets none: full fetches, which are legal",
    ),
    Budget(
        "memory of fetch sessions",
        "fetch_sessions_bytes_max",
        "ponor_fetch_session_bytes",
        "as above",
    ),
    Budget(
        "reads of old data at a time",
        "cold_reads_in_flight_max",
        "ponor_cold_reads",
        "reads wait in turn",
    ),
    Budget(
        "reads of old data that wait",
        "cold_reads_waiting_max",
        "ponor_cold_reads",
        "a retriable error: KAFKA_STORAGE_ERROR",
    ),
    Budget(
        "speed of reads of old data",
        "cold_read_bytes_per_s_max",
        "ponor_cold_read_bytes_total",
        "reads wait for their tokens",
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
        "memory of groups and offsets",
        "groups_memory_bytes_max",
        "ponor_groups_memory_bytes",
        "joins and commits that would need more are refused with a retriable error",
    ),
    Budget(
        "producers remembered per partition",
        "producers_per_partition_max",
        "ponor_partitions_open",
        "the most silent one is forgotten",
    ),
)
"""In the order of the page: from the socket inwards."""


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
)
"""Bounds of memory that can all be reached at the same time."""


def memory_bytes(settings: BrokerSettings) -> int:
    """What a broker needs when every budget is used up; the process itself and its image of the metadata come on top."""
    values = {row.name: value for row, value in describe_values(settings)}
    return int(sum(_number(values[name]) for name in MEMORY))


def export_limits(telemetry: Telemetry, settings: BrokerSettings) -> None:
    """One gauge per budget, so that what is used can be shown as a share of what there is."""
    values = {row.name: value for row, value in describe_values(settings)}
    for budget in BUDGETS:
        telemetry.gauge("ponor_budget_limit", partial(_number, values[budget.setting]), budget=budget.setting)


def _number(value: object) -> float:
    assert isinstance(value, int), f"the bound of a budget is a number, not {value!r}"
    return float(value)
