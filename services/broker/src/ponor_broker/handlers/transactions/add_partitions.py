"""AddPartitionsToTxn. Clients of generation 1 send versions 0 to 3. Leaders of partitions send version 4 and
newer, to add or verify partitions of several transactions (KIP-890).

The verifier of this broker calls `answer` without a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from ponor_runtime.identity import ProducerId
from ponor_runtime.turns import Steps, in_turns, turn

from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.handlers.transactions.error_versions import error_of_version
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows
from ponor_broker.transactions.coordinator import BatchedAdd, TransactionCoordinator
from ponor_broker.transactions.events import AddRequest, ProducerClaim
from ponor_broker.transactions.records import TopicPartition
from ponor_broker.transactions.shard import Verified

BATCHED_FROM: Final = 4
Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]


class PartitionDirectory(Protocol):
    """Partitions that exist, from the image."""

    def leader_id(self, topic: str, index: int) -> int | None:
        """Return the node id of a partition's leader; −1 if it has none now; None if there is no such
        partition.
        """
        ...


class AddPartitionsHandler:
    """Adds all partitions of a transaction, or none."""

    def __init__(self, coordinator: TransactionCoordinator, partitions: PartitionDirectory) -> None:
        self._coordinator = coordinator
        self._partitions = partitions

    async def handle(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        """Return one result per partition."""
        version = context.api_version
        if version >= BATCHED_FROM:
            check_rows(sum(1 + sum(map(_count, one.topics)) for one in request.transactions))
            return await self.answer(request)
        topics = request.v3_and_below_topics
        check_rows(sum(len(topic.partitions) for topic in topics))
        wanted = frozenset(_places(topics))
        refused = await in_turns(self._refused(wanted, is_client=True))
        if wanted and not refused:
            claim = _claim(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            error = await self._coordinator.add_partitions(
                request.v3_and_below_transactional_id, AddRequest(claim, wanted, is_generation_2=False)
            )
            refused = dict.fromkeys(wanted, error_of_version(error, version))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, refused))

    async def answer(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Return one result per transaction and partition, for version 4 or newer."""
        codes: list[Codes] = []
        asked: list[tuple[int, BatchedAdd]] = []
        in_turn = 0
        for number, row in enumerate(request.transactions):
            wanted = frozenset(_places(row.topics))
            codes.append(await in_turns(self._refused(wanted, is_client=False)))
            if wanted and not codes[-1]:
                add = AddRequest(_claim(row.producer_id, row.producer_epoch), wanted, is_generation_2=True)
                asked.append((number, BatchedAdd(row.transactional_id, add, row.verify_only)))
            in_turn += 1 + len(wanted)
            if in_turn >= ROWS_PER_STEP:
                in_turn = 0
                await turn()
        found = await self._coordinator.add_batched([one for _, one in asked])
        for (number, one), result in zip(asked, found, strict=True):
            codes[number] = _codes(one.request, result)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(row.transactional_id, _results(row.topics, of_row))
                for row, of_row in zip(request.transactions, codes, strict=True)
            ]
        )

    def _refused(self, wanted: Iterable[TopicPartition], *, is_client: bool) -> Steps[Codes]:
        """Return the codes of all partitions if one of them cannot be added, otherwise an empty mapping.

        A partition must be in the image: if it is missing at the end of the transaction, the coordinator
        assumes that it was deleted and sends no marker.
        """
        fenced = self._coordinator.shards.refusal
        if fenced is not None:
            return dict.fromkeys(wanted, fenced)  # the image may be outdated
        codes: dict[TopicPartition, ErrorCode] = {}
        is_refused = False
        for number, where in enumerate(wanted, 1):
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
            if is_client and where[0] in INTERNAL_TOPICS:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif self._partitions.leader_id(*where) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            is_refused = is_refused or code is not ErrorCode.OPERATION_NOT_ATTEMPTED
            codes[where] = code
            if number % ROWS_PER_STEP == 0:
                yield
        return codes if is_refused else {}


def _count(topic: AddPartitionsToTxnTopic) -> int:
    return 1 + len(topic.partitions)


def _places(topics: Sequence[AddPartitionsToTxnTopic]) -> Iterable[TopicPartition]:
    return ((topic.name, index) for topic in topics for index in topic.partitions)


def _claim(producer_id: int, producer_epoch: int) -> ProducerClaim:
    return ProducerClaim(ProducerId(producer_id), producer_epoch)


def _codes(request: AddRequest, result: Verified) -> Codes:
    return dict.fromkeys(request.partitions, result) if isinstance(result, ErrorCode) else result


def _results(topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    row = AddPartitionsToTxnPartitionResult
    return [
        AddPartitionsToTxnTopicResult(
            topic.name, [row(index, codes[topic.name, index]) for index in topic.partitions]
        )
        for topic in topics
    ]
