"""FindCoordinator: the broker that coordinates a group or a transactional id. There are no share groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import BrokerAddress
from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.requests.api_handler import RequestContext

BATCHED_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
NO_NODE: Final = -1
SINGLE_SUCCESS: Final = "NONE"
"""Kafka's error message of a success, before version 4."""
REFUSALS: Final[Mapping[int, tuple[ErrorCode, str]]] = {
    GROUP: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker coordinates this group yet; retry"),
    TRANSACTION: (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "no broker coordinates this transactional id yet; retry",
    ),
}
"""Why a key of each type has no coordinator."""


class CoordinatorDirectory(Protocol):
    """Looks up the brokers that coordinate groups, or those that coordinate transactional ids."""

    async def find(self, keys: Sequence[str]) -> list[BrokerAddress | None]:
        """Return the broker that coordinates each key; None for a key without a coordinator yet."""
        ...


class FindCoordinatorHandler:
    """Answers from the image; the first request of a type creates its internal topic."""

    def __init__(self, groups: CoordinatorDirectory, transactions: CoordinatorDirectory) -> None:
        self._directories = {GROUP: groups, TRANSACTION: transactions}
        self._turns = Turns()

    async def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """Return one result per key."""
        if context.api_version >= BATCHED_FROM:
            return FindCoordinatorResponse(
                coordinators=await self._find(request.coordinator_keys, request.key_type)
            )
        (answer,) = await self._find([request.key], request.key_type)
        return FindCoordinatorResponse(
            error_code=answer.error_code,
            error_message=answer.error_message or SINGLE_SUCCESS,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
        )

    async def _find(self, keys: Sequence[str], key_type: int) -> list[Coordinator]:
        directory = self._directories.get(key_type)
        found = [None] * len(keys) if directory is None else await directory.find(keys)
        return await self._turns.run_short(_answers(keys, key_type, found))


def _answers(
    keys: Sequence[str], key_type: int, found: Sequence[BrokerAddress | None]
) -> Steps[list[Coordinator]]:
    refusal = REFUSALS.get(key_type) or (
        ErrorCode.INVALID_REQUEST,
        f"key type {key_type} has no coordinator; use {GROUP} (group) or {TRANSACTION} (transactional id)",
    )
    answers: list[Coordinator] = []
    for number, (key, address) in enumerate(zip(keys, found, strict=True), 1):
        if address is None:
            answers.append(Coordinator(key, NO_NODE, "", NO_NODE, *refusal))
        else:
            answers.append(Coordinator(key, address.node_id, address.host, address.port, ErrorCode.NONE, ""))
        if number % ROWS_PER_STEP == 0:
            yield
    return answers
