"""Transactions with Kafka's own requests (KIP-664): list, describe, abort."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

from ponor_cli.clients.coordinators import TRANSACTION_KEY, WAIT_S_MAX, Brokers, coordinator_of, repeated
from ponor_cli.clients.kafka_client import error_name
from ponor_cli.errors import CommandError

ANY_DURATION: Final = -1


class State(enum.StrEnum):
    """Kafka's states of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


OPEN_STATES: Final = frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT})


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a list; an empty filter matches all ids. `longer_than_ms`: minimum age of the
    transaction.
    """

    states: Sequence[State] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int = ANY_DURATION
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ListedId:
    """A transactional id in a list."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class DescribedId:
    """A transactional id. `start_ms` (wall clock) is None unless a transaction is open."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[tuple[str, int], ...]

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or its markers are not all written."""
        return self.state in OPEN_STATES


def list_ids(brokers: Brokers, filters: Filters) -> list[ListedId]:
    """Return the transactional ids of all coordinators, by name.

    Raises:
        CommandError: the pattern is invalid, or a coordinator refuses.
    """
    request = ListTransactionsRequest(
        state_filters=list(filters.states),
        producer_id_filters=list(filters.producer_ids),
        duration_filter=filters.longer_than_ms,
        transactional_id_pattern=filters.pattern,
    )
    found: list[ListedId] = []
    for node_id in brokers.node_ids:
        call = partial(brokers.of(node_id).call, request, ListTransactionsResponse)
        response = repeated(call, lambda response: response.error_code)
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise CommandError(f"--id-pattern {filters.pattern}: not a valid RE2 regular expression")
        if response.error_code != ErrorCode.NONE:
            raise CommandError(
                f"broker {node_id} cannot list transactions: {error_name(response.error_code)};"
                " repeat the command"
            )
        found += [
            ListedId(row.transactional_id, node_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
        ]
    return sorted(found, key=lambda row: row.transactional_id)


def describe_id(brokers: Brokers, transactional_id: str) -> DescribedId:
    """Return the state of one id.

    Raises:
        CommandError: there is no such id, or its coordinator does not answer.
    """
    # FindCoordinator would create the topic, but a command that only reads must not create topics.
    if brokers.any.metadata([TRANSACTIONS_TOPIC]).topics[0].error_code != ErrorCode.NONE:
        raise _absent(transactional_id)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def ask() -> tuple[int, DescribeTransactionsResponse]:
        node_id = coordinator_of(brokers, TRANSACTION_KEY, transactional_id)
        return node_id, brokers.of(node_id).call(request, DescribeTransactionsResponse)

    node_id, response = repeated(ask, lambda pair: pair[1].transaction_states[0].error_code)
    row = response.transaction_states[0]
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise _absent(transactional_id)
    if row.error_code != ErrorCode.NONE:
        raise _refused(transactional_id, row.error_code)
    return DescribedId(
        transactional_id,
        node_id,
        row.producer_id,
        row.producer_epoch,
        row.transaction_state,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms if row.transaction_state in OPEN_STATES else None,
        tuple(sorted((topic.topic, index) for topic in row.topics for index in topic.partitions)),
    )


def terminate(brokers: Brokers, transactional_id: str) -> DescribedId:
    """Abort the open transaction of an id, which fences its producer. Returns the state before the abort.

    Raises:
        CommandError: no transaction is open, its outcome is decided, or the abort is not complete in time.
    """
    before = describe_id(brokers, transactional_id)
    if not before.is_open:
        raise CommandError(
            f"transactional id {transactional_id} has no open transaction (state {before.state});"
            " nothing to abort"
        )
    if before.state != State.ONGOING:
        raise CommandError(
            f"the transaction of {transactional_id} cannot be aborted: its outcome is decided (state"
            f" {before.state}), and its coordinator retries until every partition has the marker"
        )
    # Send the current timeout, so that the id keeps it until its next producer sets another one.
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=before.timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    response = repeated(
        lambda: brokers.of(coordinator_of(brokers, TRANSACTION_KEY, transactional_id)).call(
            request, InitProducerIdResponse
        ),
        lambda response: response.error_code,
    )
    if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
        raise CommandError(
            f"the coordinator is still ending the transaction of {transactional_id} after"
            f" {WAIT_S_MAX:.0f} s; `ponor transaction describe {transactional_id}` shows the partitions"
        )
    if response.error_code != ErrorCode.NONE:
        raise _refused(transactional_id, response.error_code)
    return before


def describe_all(brokers: Brokers, ids: Collection[str]) -> list[DescribedId]:
    """Return the states of these ids, without those that no longer exist."""
    found = []
    for transactional_id in sorted(ids):
        try:
            found.append(describe_id(brokers, transactional_id))
        except AbsentIdError:
            continue
    return found


class AbsentIdError(CommandError):
    """There is no such transactional id."""


def _absent(transactional_id: str) -> CommandError:
    return AbsentIdError(
        f"there is no transactional id {transactional_id}; `ponor transaction list` lists the ids"
    )


def _refused(transactional_id: str, code: int) -> CommandError:
    return CommandError(f"transactional id {transactional_id}: {error_name(code)}")
