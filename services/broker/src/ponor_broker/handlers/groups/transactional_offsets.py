"""TxnOffsetCommit: offsets that become visible when a transaction commits (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ponor_runtime.clock import Clock

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.coordination.transactional_append import TransactionalProducer, Verification
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.shard import GroupShard
from ponor_broker.handlers.groups.commit_rows import EXISTS, CommitRows
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.transactions.verification import Claim, TransactionVerifier, WaitingBatch
from ponor_broker.transactions.verification_errors import (
    TransactionalWrite,
    error_of_offset_commit,
    write_of_offset_commit,
)

LOADING_KNOWN_FROM: Final = 2
"""Producers that send earlier versions may crash after COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""
BATCH_BYTES_PER_OFFSET: Final = 200
"""Memory of an offset that waits for the transaction coordinator, without its metadata."""

_Commits: TypeAlias = dict[TopicPartition, CommittedOffset]
_Proven: TypeAlias = tuple[ErrorCode, Verification | None]


class TransactionalOffsetsHandler:
    """Answers commits when they are durable. Their offsets are then pending until the transaction ends."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: TopicDirectory,
        clock: Clock,
        verifier: TransactionVerifier[Verification],
    ) -> None:
        self._coordinator = coordinator
        self._verifier = verifier
        self._rows = CommitRows(coordinator, topics, clock)

    async def commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        """TxnOffsetCommit. Errors take precedence as in OffsetCommit."""
        commits: _Commits = {}
        answers: list[TxnOffsetCommitResponseTopic] = []
        existing: list[TxnOffsetCommitResponsePartition] = []
        for topic in request.topics:
            rows: list[TxnOffsetCommitResponsePartition] = []
            for partition in topic.partitions:
                error = self._rows.refusal_of(topic.name, partition)
                rows.append(TxnOffsetCommitResponsePartition(partition.partition_index, error))
                if error in EXISTS:
                    existing.append(rows[-1])
                if error is ErrorCode.NONE:
                    place = topic.name, partition.partition_index
                    commits[place] = self._rows.committed(topic.name, partition)
            answers.append(TxnOffsetCommitResponseTopic(topic.name, partitions=rows))
        if existing:
            error = await self._commit(request, commits, context.api_version)
            if error is not ErrorCode.NONE:
                for row in existing:
                    row.error_code = error
        return TxnOffsetCommitResponse(topics=answers)

    async def _commit(self, request: TxnOffsetCommitRequest, commits: _Commits, version: int) -> ErrorCode:
        error = await self._commit_verified(request, commits, write_of_offset_commit(version))
        if error is ErrorCode.GROUP_ID_NOT_FOUND:
            return ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_KNOWN_FROM:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return error

    async def _commit_verified(
        self, request: TxnOffsetCommitRequest, commits: _Commits, write: TransactionalWrite
    ) -> ErrorCode:
        shard = await self._coordinator.shard_for_transaction(request.group_id)
        if isinstance(shard, ErrorCode):
            return shard
        # As in Kafka the transaction is verified before the member.
        error, proof = await self._verify(shard, request, commits, write)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return ErrorCode.NOT_COORDINATOR  # the partition was closed in the meantime
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # The transaction coordinator's image lacks the partition of the group's offsets. As in Kafka.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            return error_of_offset_commit(error)
        now = self._coordinator.shards.of(request.group_id)
        if now is not shard:
            return now if isinstance(now, ErrorCode) else ErrorCode.NOT_COORDINATOR
        member = MemberClaim(
            request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        producer = TransactionalProducer(request.producer_id, request.producer_epoch, proof)
        return await shard.commit_in_transaction(request.group_id, member, commits, producer)

    async def _verify(
        self,
        shard: GroupShard,
        request: TxnOffsetCommitRequest,
        commits: _Commits,
        write: TransactionalWrite,
    ) -> _Proven:
        """Let the transaction coordinator verify or add the partition of the group's offsets."""
        where = OFFSETS_TOPIC, shard.partition_index
        take_proof = partial(
            shard.begin_verification,
            request.producer_id,
            request.producer_epoch,
            generation=2 if write is TransactionalWrite.ADDING else 1,
        )
        if not self._verifier.is_waiting(where, request.producer_id) and take_proof() is None:
            return ErrorCode.NONE, None
        answer: asyncio.Future[_Proven] = asyncio.get_running_loop().create_future()

        def settled(error: ErrorCode, proof: Verification | None) -> None:
            if not answer.done():  # otherwise the client has disconnected
                answer.set_result((error, proof))

        size_bytes = sum(BATCH_BYTES_PER_OFFSET + len(one.metadata) for one in commits.values())
        claim = Claim(request.transactional_id, request.producer_id, request.producer_epoch)
        batch = WaitingBatch(write, size_bytes, take_proof, lambda: True, settled)
        self._verifier.submit(where, claim, batch)
        return await answer
