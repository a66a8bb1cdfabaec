"""Leader duty: fence failed brokers, elect new leaders, and assign the recovery of their logs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow, WalKind, is_current
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.nodes.failover_rules import Assignment, Election, Failures, find_failures
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.proposer import Proposer

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("node_fenced", "node_registered", "node_drain_set", "wal_closed", "cluster_stop_announced")
"""Records after which the duty runs."""
POLL_INTERVAL_S: Final = 0.1
"""Seconds between two steps while a broker's session is broken or a change is blocked. The duty must poll,
because no record wakes it when a broker is heard again."""


class FailoverDuty:
    """A step of a `LeaderDuty`."""

    def __init__(
        self, proposer: Proposer, activity: NodeActivity, leading: Leading, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._proposer = proposer
        self._activity = activity
        self._clock = clock
        self._failovers = telemetry.counter("ponor_failovers_total")
        self._elections = telemetry.counter("ponor_controller_failover_elections_total")
        self._assignments = telemetry.counter("ponor_controller_wal_assignments_total")
        telemetry.gauge("ponor_controller_wal_recoveries", lambda: len(orphans(proposer.view.image)))
        self._recovering: dict[tuple[NodeId, NodeEpoch], int] = {}
        """Start of each recovery that this leader has observed, in ns; only for the log line at its end."""
        leading.on_change(self._recovering.clear)

    def step(self) -> float | None:
        """Propose the changes that are due. Returns the seconds until the next step, or None."""
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        self._report_recovered(view)
        self._ignore_fenced(view)
        cluster = cluster_of(view)
        if cluster is not None and cluster.stop_until_ms > now_ms:
            return (cluster.stop_until_ms - now_ms) / 1000
        failures = find_failures(view, self._activity.is_suspected, self._activity.is_registering)
        why = [self._activity.reason(node.node_id) for node in failures.fenced]
        records = failures.records(view)
        if records:
            self._proposer.propose(records, divisible=True)
            self._report(failures, why)
        if failures.more:
            return 0
        return min(self._waits(view, failures), default=None)

    def _ignore_fenced(self, view: View) -> None:
        """Exclude fenced nodes when deciding whether most nodes are silent."""
        for node in view[NODES]:
            if node.fenced:
                self._activity.ignore(node.node_id)

    def _waits(self, view: View, failures: Failures) -> list[float]:
        """For each broker that may be fenced: the seconds until it can be suspected."""
        waits = [POLL_INTERVAL_S] if failures.blocked else []
        for node in view[NODES]:
            if node.role is not NodeRole.BROKER or node.fenced or node.wal is not WalKind.OBJECT:
                continue
            suspected_in_s = self._activity.suspected_in_s(node.node_id)
            if suspected_in_s is not None:
                away = self._activity.is_away(node.node_id)
                waits.append(min(suspected_in_s, POLL_INTERVAL_S) if away else suspected_in_s)
        return waits

    def _report(self, failures: Failures, why: Sequence[str]) -> None:
        for node, reason in zip(failures.fenced, why, strict=True):
            self._failovers.add()
            LOG.warning("fenced broker %d epoch %d: %s", node.node_id, node.node_epoch, reason)
        for line in _elections_by_source(failures.elected):
            LOG.warning("%s", line)
        self._elections.add(len(failures.elected))
        for assignment in failures.assigned:
            self._assignments.add()
            LOG.warning("%s", _assignment_line(assignment))

    def _report_recovered(self, view: View) -> None:
        now_ns = self._clock.monotonic_ns()
        present = {(row.node_id, row.wal_epoch): row for row in orphans(view)}
        for name, since_ns in list(self._recovering.items()):
            if name not in present:
                del self._recovering[name]
                took_ms = (now_ns - since_ns) // 1_000_000
                LOG.info("write-ahead log %d/%d was recovered and closed after %d ms", *name, took_ms)
        for name in present:
            self._recovering.setdefault(name, now_ns)


def orphans(view: View) -> list[WalRow]:
    """Logs in the store whose owner's epoch has ended. Each is being recovered, or waits for a recovery."""
    return [row for row in view[WALS] if not is_current(view, row.node_id, row.wal_epoch)]


def _elections_by_source(elected: Sequence[Election]) -> list[str]:
    """One log line for each broker that loses partitions."""
    by_source: dict[NodeId, Counter[NodeId]] = {}
    for each in elected:
        by_source.setdefault(each.partition.leader_id, Counter())[each.leader_id] += 1
    lines: list[str] = []
    for source_id, counts in by_source.items():
        shares = ", ".join(f"{leader_id} ({count})" for leader_id, count in sorted(counts.items()))
        lines.append(
            f"elected new leaders of {counts.total()} partitions of broker {source_id}: brokers {shares}"
        )
    return lines


def _assignment_line(assignment: Assignment) -> str:
    wal, recoverer = assignment.wal, assignment.recoverer
    before = (
        f", because broker {wal.recoverer_id} epoch {wal.recoverer_epoch} failed too" if wal.token else ""
    )
    return (
        f"assigned the recovery of write-ahead log {wal.node_id}/{wal.wal_epoch} from slot"
        f" {wal.trim_sequence} on to {_name(recoverer)}{before}"
    )


def _name(node: NodeRow) -> str:
    return f"broker {node.node_id} epoch {node.node_epoch}"
