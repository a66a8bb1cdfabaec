"""Decide what is due for failed brokers, from rows and suspicions only.

Each step depends on rows only, so a new leader continues where the last one stopped.

| condition | action |
|---|---|
| a broker with its log in the store is suspected, and another broker can take its partitions | fence the suspected broker |
| a fenced broker with its log in the store leads partitions | elect new leaders: the target of the partition's move if it is live, otherwise the broker with the fewest partitions |
| the epoch of a log's owner has ended, and no live broker recovers the log | assign the recovery to the broker with the fewest recoveries |

A broker with its log in a file is excluded: only its next process, or an operator with its disk, can recover
acknowledged records. A broker is also excluded while a new process of it is registering. No change is due while
a stop of the cluster is announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow, WalKind, is_current
from ponor_metadata.nouns.topics import MOVES, NO_LEADER, PARTITIONS, PARTITIONS_LED_BY, PartitionRow
from ponor_metadata.nouns.wals import WALS, WALS_RECOVERED_BY, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.domains.nodes.registration import assign_recovery
from ponor_controller.shared_rules import move_records
from ponor_controller.shared_rules.placement import candidates, is_live, led_counts, spread

PARTITIONS_PER_STEP_MAX: Final = 500
"""Maximum number of elections in one step. Every subscriber applies the batch in one turn of its event loop:
2,000 elections took 30 ms there, and 50 to 80 ms at the leader."""
ASSIGNMENTS_PER_STEP_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Election:
    """A partition and its new leader."""

    partition: PartitionRow
    leader_id: NodeId


@dataclass(frozen=True, slots=True)
class Assignment:
    """A log and its new recoverer."""

    wal: WalRow
    recoverer: NodeRow


@dataclass(slots=True)
class Failures:
    """Changes that are due.

    Attributes:
        fenced: brokers to fence.
        assigned: logs and their recoverers.
        elected: partitions and their leaders.
        more: whether partitions or logs are left for the next step.
        blocked: whether a change waits for a live broker or for a registration, so that the next check is due
            soon.
    """

    fenced: list[NodeRow] = field(default_factory=list)
    assigned: list[Assignment] = field(default_factory=list)
    elected: list[Election] = field(default_factory=list)
    more: bool = False
    blocked: bool = False

    def records(self, view: View) -> list[records_pb2.Record]:
        """The records of the changes. They are ordered so that they may be spread over several batches.

        A log is assigned after its owner is fenced, and before the elections, because recovery takes longest.
        """
        fences = [
            records_pb2.Record(
                node_fenced=records_pb2.NodeFenced(node_id=node.node_id, node_epoch=node.node_epoch)
            )
            for node in self.fenced
        ]
        assignments = [
            assign_recovery(each.wal, each.recoverer.node_id, each.recoverer.node_epoch)
            for each in self.assigned
        ]
        return [
            *fences,
            *assignments,
            *(move_records.elected(view, each.partition, each.leader_id) for each in self.elected),
        ]


def find_failures(
    view: View,
    is_suspected: Callable[[NodeId], bool],
    is_registering: Callable[[NodeId], bool] = lambda _: False,
) -> Failures:
    """Find the changes that are due. The caller checks for announced stops."""
    return _Search(view, is_suspected, is_registering).run()


class _Search:
    """One search. A broker that the search decides to fence counts as fenced in its later steps."""

    def __init__(
        self, view: View, is_suspected: Callable[[NodeId], bool], is_registering: Callable[[NodeId], bool]
    ) -> None:
        self._view = view
        self._suspects = is_suspected
        self._registers = is_registering
        self._brokers = [row for row in view[NODES] if row.role is NodeRole.BROKER]
        self._targets = candidates(view, is_suspected)
        self._found = Failures()

    def run(self) -> Failures:
        """See `find_failures`."""
        self._fence()
        self._assign()
        self._elect()
        return self._found

    def _fence(self) -> None:
        for node in self._brokers:
            if node.fenced or node.wal is not WalKind.OBJECT or not self._suspects(node.node_id):
                continue
            if self._targets:
                self._found.fenced.append(node)
            else:
                self._found.blocked = True

    def _assign(self) -> None:
        fenced = {(node.node_id, node.node_epoch) for node in self._found.fenced}  # only for membership tests
        recoveries = {
            node.node_id: len(self._view[WALS].find(WALS_RECOVERED_BY, node.node_id))
            for node in self._recoverers()
        }
        for wal in self._view[WALS]:
            owner = (wal.node_id, wal.wal_epoch)
            if (is_current(self._view, *owner) and owner not in fenced) or self._is_recovered(wal):
                continue
            if self._registers(wal.node_id):
                self._found.blocked = True
                continue
            if not recoveries:
                self._found.blocked = True
                return
            if len(self._found.assigned) == ASSIGNMENTS_PER_STEP_MAX:
                self._found.more = True
                return
            recoverer_id = min(recoveries, key=lambda node_id: (recoveries[node_id], node_id))
            recoveries[recoverer_id] += 1
            recoverer = self._view[NODES].get(recoverer_id)
            assert recoverer is not None
            self._found.assigned.append(Assignment(wal, recoverer))

    def _recoverers(self) -> list[NodeRow]:
        """Live brokers that may recover logs: brokers that have their own log in the store and are not draining.

        If there are none, return the draining brokers with a log in the store. If there are none of these
        either, return brokers with a log in a file.
        """
        live = [node for node in self._brokers if is_live(node, self._suspects)]
        ranks = {node.node_id: (node.wal is not WalKind.OBJECT, node.draining) for node in live}
        best = min(ranks.values(), default=None)
        return [node for node in live if ranks[node.node_id] == best]

    def _is_recovered(self, wal: WalRow) -> bool:
        recoverer = self._view[NODES].get(wal.recoverer_id)
        is_there = is_live(recoverer, self._suspects)
        return is_there and recoverer is not None and recoverer.node_epoch == wal.recoverer_epoch

    def _elect(self) -> None:
        counts = led_counts(self._view, self._targets)
        spreading: list[PartitionRow] = []
        for partition in self._leaderless():
            if not counts:
                self._found.blocked = True
                return
            if len(self._found.elected) + len(spreading) == PARTITIONS_PER_STEP_MAX:
                self._found.more = True
                break
            move = self._view[MOVES].get((partition.topic_id, partition.partition))
            if move is not None and move.target_id in counts:
                self._found.elected.append(Election(partition, move.target_id))
            else:
                spreading.append(partition)
        if spreading:
            leaders = spread(counts, len(spreading))
            self._found.elected.extend(map(Election, spreading, leaders))

    def _leaderless(self) -> Iterator[PartitionRow]:
        """Partitions without a leader, or with a fenced leader whose log is in the store."""
        partitions = self._view[PARTITIONS]
        yield from partitions.find(PARTITIONS_LED_BY, NO_LEADER)
        fenced = {node.node_id for node in self._found.fenced}  # only for membership tests
        for node in self._brokers:
            if node.wal is not WalKind.OBJECT or not (node.fenced or node.node_id in fenced):
                continue
            if self._registers(node.node_id):
                self._found.blocked = True
            else:
                yield from partitions.find(PARTITIONS_LED_BY, node.node_id)
