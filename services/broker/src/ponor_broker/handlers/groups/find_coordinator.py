"""FindCoordinator: the broker that coordinates a group, a transactional id, or a share partition's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import BrokerAddress
from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.requests.api_handler import RequestContext

BATCHED_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
SHARES_FROM: Final = 6
"""First version with share partitions."""
NO_NODE: Final = -1
SINGLE_SUCCESS: Final = "NONE"
"""Kafka's error message of a success, before version 4."""


class Refusal(NamedTuple):
    """Why a key has no coordinator."""

    error: ErrorCode
    message: str


REFUSALS: Final[Mapping[int, Refusal]] = {
    key_type: Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no broker coordinates this {key} yet; retry")
    for key_type, key in ((GROUP, "group"), (TRANSACTION, "transactional id"), (SHARE, "share partition"))
}
"""Why a key of each type has no coordinator."""


class CoordinatorDirectory(Protocol):
    """Looks up the brokers that coordinate groups, transactional ids, or share partitions."""

    async def find(self, keys: Sequence[str]) -> list[BrokerAddress | None]:
        """Return the broker that coordinates each key; None for a key without a coordinator yet."""
        ...


class FindCoordinatorHandler:
    """Answers from the image; the first request of a type creates its internal topic."""

    def __init__(
        self,
        groups: CoordinatorDirectory,
        transactions: CoordinatorDirectory,
        shares: CoordinatorDirectory,
        address_at: Callable[[int, str], BrokerAddress | None],
    ) -> None:
        """Answer from these directories; `address_at` returns a broker's address at a listener."""
        self._directories = {GROUP: groups, TRANSACTION: transactions, SHARE: shares}
        self._address_at = address_at
        self._turns = Turns()

    async def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """Return one result per key."""
        if context.api_version >= BATCHED_FROM:
            return FindCoordinatorResponse(
                coordinators=await self._find(request.coordinator_keys, request.key_type, context)
            )
        (answer,) = await self._find([request.key], request.key_type, context)
        return FindCoordinatorResponse(
            error_code=answer.error_code,
            error_message=answer.error_message or SINGLE_SUCCESS,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
        )

    async def _find(self, keys: Sequence[str], key_type: int, context: RequestContext) -> list[Coordinator]:
        directory = self._directories.get(key_type)
        if directory is None or (key_type == SHARE and context.api_version < SHARES_FROM):
            found: Sequence[_Found] = [_unknown(key_type)] * len(keys)
        elif key_type == SHARE:
            found = await self._find_shares(keys)
        else:
            found = [address or REFUSALS[key_type] for address in await directory.find(keys)]
        listener = context.connection.listener
        if listener:
            brokers = {one.node_id: one for one in found if not isinstance(one, Refusal)}
            moved = {node_id: self._address_at(node_id, listener) for node_id in brokers}
            found = [
                one if isinstance(one, Refusal) else moved[one.node_id] or REFUSALS[key_type] for one in found
            ]
        return await self._turns.run_short(_answers(keys, found))

    async def _find_shares(self, keys: Sequence[str]) -> Sequence[_Found]:
        parsed = await self._turns.run_short(_share_keys(keys))
        addresses = iter(await self._directories[SHARE].find([key for key in parsed if key is not None]))
        return [_MALFORMED if key is None else next(addresses) or REFUSALS[SHARE] for key in parsed]


_Found: TypeAlias = BrokerAddress | Refusal
_MALFORMED: Final = Refusal(ErrorCode.INVALID_REQUEST, "the key is not GROUP:TOPIC_ID:PARTITION")


def _unknown(key_type: int) -> Refusal:
    reason = (
        f"key type {key_type} has no coordinator in this version; use {GROUP} (group), {TRANSACTION} "
        f"(transactional id), or from version {SHARES_FROM} on {SHARE} (share partition)"
    )
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


def _share_keys(keys: Sequence[str]) -> Steps[list[str | None]]:
    """Return each key in the form that determines its partition; None for a malformed one."""
    found: list[str | None] = []
    for number, text in enumerate(keys, 1):
        key = SharePartitionKey.parse(text)
        found.append(None if key is None else str(key))
        if number % ROWS_PER_STEP == 0:
            yield
    return found


def _answers(keys: Sequence[str], found: Sequence[_Found]) -> Steps[list[Coordinator]]:
    answers: list[Coordinator] = []
    for number, (key, address) in enumerate(zip(keys, found, strict=True), 1):
        if isinstance(address, Refusal):
            answers.append(Coordinator(key, NO_NODE, "", NO_NODE, *address))
        else:
            answers.append(Coordinator(key, address.node_id, address.host, address.port, ErrorCode.NONE, ""))
        if number % ROWS_PER_STEP == 0:
            yield
    return answers
