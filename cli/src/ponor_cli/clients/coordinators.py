"""Coordinators of groups and transactional ids: which broker it is, and repetition of transient errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

from ponor_cli.clients.kafka_client import KafkaClient, error_name
from ponor_cli.errors import CommandError

R = TypeVar("R")
WAIT_S_MAX: Final = 60.0
RETRY_S: Final = 0.1
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
"""Key types of FindCoordinator."""
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Brokers(Protocol):
    """The part of `BrokerConnections` that is used here."""

    @property
    def any(self) -> KafkaClient: ...
    @property
    def node_ids(self) -> list[int]: ...
    def refresh(self) -> None: ...
    def of(self, node_id: int) -> KafkaClient: ...


def coordinator_of(brokers: Brokers, key_type: int, key: str) -> int:
    """Return the node id of the coordinator of a group or of a transactional id.

    Raises:
        CommandError: no broker names a coordinator within `WAIT_S_MAX`.
    """
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    row = repeated(
        lambda: brokers.any.call(request, FindCoordinatorResponse).coordinators[0],
        lambda row: row.error_code,
    )
    if row.error_code != ErrorCode.NONE:
        what = "group" if key_type == GROUP_KEY else "transactional id"
        raise CommandError(f"{what} {key}: {error_name(row.error_code)}")
    if row.node_id not in brokers.node_ids:
        brokers.refresh()
    return row.node_id


def repeated(call: Callable[[], R], code_of: Callable[[R], int]) -> R:
    """Repeat a call that returns a transient error, for at most `WAIT_S_MAX`. Returns the last answer."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        answer = call()
        if code_of(answer) not in _RETRIED or time.monotonic() > deadline:
            return answer
        time.sleep(RETRY_S)
