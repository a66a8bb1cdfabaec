"""A verifier, coordinators with transactions, and partitions with proofs and markers, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.transactions.verification import Claim, TransactionVerifier, WaitingBatch
from ponor_broker.transactions.verification_errors import TransactionalWrite
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_kafka.message import Message
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation

from services.broker.tests.peers.peer_kit import KAFKA, Answer, Directory, listening

HERE = 0
COORDINATOR_PARTITIONS = 6
Where = tuple[str, int]
BYTES_MAX = 1 << 20
WAIT_MS_MAX = 10_000
RETRY_MS_MAX = 100


@dataclass(eq=False)
class Proof:
    """A proof of the model partition."""

    is_void: bool = False


@dataclass
class Partition:
    """A partition's transactions: open ones by producer, and pending proofs."""

    open: dict[int, int] = field(default_factory=dict)
    proofs: dict[int, list[Proof]] = field(default_factory=dict)
    appended: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, epoch and number of each batch."""

    def take_proof(self, claim: Claim) -> Proof | None:
        if self.open.get(claim.producer_id) == claim.producer_epoch:
            return None
        proof = Proof()
        self.proofs.setdefault(claim.producer_id, []).append(proof)
        return proof

    def append(self, claim: Claim, number: int) -> None:
        self.open[claim.producer_id] = claim.producer_epoch
        self.appended.append((claim.producer_id, claim.producer_epoch, number))

    def mark(self, producer_id: int) -> None:
        """Append a marker."""
        self.open.pop(producer_id, None)
        for proof in self.proofs.pop(producer_id, []):
            proof.is_void = True


Judge = Callable[[Claim, Where, bool], ErrorCode]
"""A coordinator's answer for a claim, a partition, and whether it only verifies."""


@dataclass
class VerificationWorld:
    """Brokers 0 (with the verifier), 1 and 2; each is the coordinator of a third of the ids.

    Attributes:
        requests: requests that coordinators received, by broker.
    """

    seed: int = 1
    judge: Judge = lambda *_: ErrorCode.NONE
    requests: list[tuple[int, AddPartitionsToTxnRequest]] = field(default_factory=list)
    leaders: list[int] = field(default_factory=lambda: [index % 3 for index in range(COORDINATOR_PARTITIONS)])
    top_error: ErrorCode = ErrorCode.NONE
    latency_s: Callable[[], float] = lambda: 0.001
    in_flight: Counter[int] = field(default_factory=Counter)
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.network = self.simulation.network
        self.directory = Directory({1: "b1", 2: "b2"})
        self.brokers = {
            node_id: self.simulation.process(f"b{node_id}", listening(f"b{node_id}", self._remote(node_id)))
            for node_id in (1, 2)
        }
        self.verifier: TransactionVerifier[Proof]

    def id_at(self, node_id: int, number: int = 0) -> str:
        """Return a transactional id whose coordinator is a broker."""
        ids = (f"txn-{suffix}" for suffix in range(1_000))
        found = [name for name in ids if self.coordinator_of(name) == node_id]
        return found[number]

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id."""
        return self.leaders[partition_for(transactional_id, COORDINATOR_PARTITIONS)]

    def partition_count(self, name: str) -> int | None:
        assert name == TRANSACTIONS_TOPIC
        return len(self.leaders) or None

    def leader_id(self, topic: str, index: int) -> int | None:
        assert topic == TRANSACTIONS_TOPIC
        return self.leaders[index]

    def run(self, story: Callable[[VerificationWorld], Awaitable[None]]) -> None:
        """Run a story within the process of the verifier."""
        over = asyncio.Event()

        async def main(runtime: Runtime) -> None:
            pool = PeerConnections(
                lambda address: runtime.network.connect(address, KAFKA),
                self.directory,
                runtime,
                client_id=str,
            )
            self.telemetry = runtime.telemetry
            self.verifier = TransactionVerifier(
                pool,
                self,
                lambda request: self._answer(HERE, request),
                runtime,
                node_id=HERE,
                bytes_max=self.bytes_max,
                wait_ms_max=WAIT_MS_MAX,
                retry_backoff_ms=20,
                retry_ms_max=RETRY_MS_MAX,
            )
            self.verifier.start()
            try:
                await story(self)
            finally:
                await self.verifier.close()
                await pool.close()
                over.set()

        async def scenario() -> None:
            for broker in self.brokers.values():
                broker.start()
            await asyncio.sleep(0.1)
            here = self.simulation.process("b0", main)
            here.start()
            await over.wait()
            assert here.failure is None, here.failure
            assert not self.network.forgotten()

        self.simulation.run(scenario())

    async def verify(
        self,
        claim: Claim,
        where: Where,
        write: TransactionalWrite = TransactionalWrite.VERIFIED,
        *,
        take_proof: Callable[[], Proof | None] = Proof,
        size_bytes: int = 100,
    ) -> ErrorCode:
        """Submit a batch and return its outcome."""
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settled(error: ErrorCode, proof: Proof | None) -> None:
            assert error is not ErrorCode.NONE or proof is None or not proof.is_void
            outcome.set_result(error)

        self.verifier.submit(where, claim, WaitingBatch(write, size_bytes, take_proof, lambda: True, settled))
        return await outcome

    def _remote(self, node_id: int) -> Answer:
        async def answer(request: Message, _: str | None) -> Message:
            assert isinstance(request, AddPartitionsToTxnRequest)
            return await self._answer(node_id, request)

        return answer

    async def _answer(self, node_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.requests.append((node_id, request))
        names = [row.transactional_id for row in request.transactions]
        assert len(set(names)) == len(names), "one row per transactional id"
        await asyncio.sleep(self.latency_s())
        results = [
            AddPartitionsToTxnResult(
                row.transactional_id,
                [
                    AddPartitionsToTxnTopicResult(
                        topic.name,
                        [
                            AddPartitionsToTxnPartitionResult(
                                index,
                                self.judge(
                                    Claim(row.transactional_id, row.producer_id, row.producer_epoch),
                                    (topic.name, index),
                                    row.verify_only,
                                ),
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in row.topics
                ],
            )
            for row in request.transactions
        ]
        await asyncio.sleep(self.latency_s())
        return AddPartitionsToTxnResponse(0, self.top_error, [] if self.top_error else results)
