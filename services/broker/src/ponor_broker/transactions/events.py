"""Events from clients for the state machine of a transactional id. For timers, completed writes and markers,
the shard calls methods of `Transaction` instead.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

from ponor_runtime.identity import ProducerId

from ponor_broker.transactions.records import TopicPartition

RequestId = NewType("RequestId", int)
UNNUMBERED: Final = RequestId(0)
"""Number of a request before the shard assigns one."""


class ProducerClaim(NamedTuple):
    """Producer id and epoch that a request contains."""

    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True)
class InitRequest:
    """An InitProducerId with a valid timeout.

    Attributes:
        expected: id and epoch of a producer that continues after an error (KIP-360); None for a new producer.
    """

    timeout_ms: int
    expected: ProducerClaim | None = None
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Partitions to add to the transaction. A client of generation 1 sends it; for generation 2, the leader
    of the partition does.
    """

    claim: ProducerClaim
    partitions: AbstractSet[TopicPartition]
    is_generation_2: bool
    request: RequestId = UNNUMBERED


@dataclass(frozen=True, slots=True)
class EndRequest:
    """An EndTxn; from version 5 on, it is of generation 2."""

    claim: ProducerClaim
    is_commit: bool
    is_generation_2: bool
    request: RequestId = UNNUMBERED
