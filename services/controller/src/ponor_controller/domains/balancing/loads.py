"""Smoothed loads of brokers and partitions, from the brokers' reports.

Loads are not replicated: a new leader receives new reports within seconds. A load is stored for the partition
and not for the broker that reported it, so the load counts for the new leader as soon as the partition moves.
The traffic of partitions that a report does not list is stored for the broker (`BrokerLoad.rest`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_runtime.identity import NodeId

from ponor_controller.settings import BalanceSettings

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""
LeaderOf: TypeAlias = Callable[[PartitionKey], NodeId | None]
"""Returns the leader of a partition in the committed image; None if the partition does not exist."""

REPORT_INTERVAL_NS_MIN: Final = 100_000_000
"""Reports within this time of the last one are ignored."""
TRAFFIC_BYTES_PER_S_MIN: Final = 1.0
"""Lower rates count as zero, because a smoothed rate never becomes exactly zero."""


class Traffic(NamedTuple):
    """Bytes per second."""

    in_bytes_per_s: float
    out_bytes_per_s: float

    def plus(self, other: Traffic) -> Traffic:
        """The sum."""
        return Traffic(
            self.in_bytes_per_s + other.in_bytes_per_s, self.out_bytes_per_s + other.out_bytes_per_s
        )

    @property
    def is_some(self) -> bool:
        """Whether at least one of the rates reaches `TRAFFIC_BYTES_PER_S_MIN`."""
        return max(self) >= TRAFFIC_BYTES_PER_S_MIN


NO_TRAFFIC: Final = Traffic(0.0, 0.0)


class BrokerLoad(NamedTuple):
    """The reported load of one broker, without the partitions that its reports list."""

    rest: Traffic
    """Traffic of partitions that the reports do not list."""
    cpu: float
    """CPU time as a share of one core."""
    reported_ns: int
    """Time of the last report."""
    smoothed_ns: int
    """Time up to which the rates are smoothed."""
    is_busy: bool
    """Whether the last report contained traffic. A broker without traffic sends no further reports."""


@dataclass(slots=True)
class _Partition:
    """The load of a partition that a report listed, and the broker that reported it last."""

    traffic: Traffic
    reporter: NodeId
    reported_ns: int


class LoadBook:
    """Loads of all brokers. Its size is bounded by the live brokers and the partitions that they reported."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._brokers: dict[NodeId, BrokerLoad] = {}
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._named_by: dict[NodeId, dict[PartitionKey, _Partition]] = {}
        self.version = 0
        """Rises with every change."""

    def clear(self) -> None:
        """Discard everything, because leadership began or ended."""
        self._brokers.clear()
        self._partitions.clear()
        self._named_by.clear()
        self.version += 1

    def add_report(self, node_id: NodeId, report: wire.LoadReport, leader_of: LeaderOf, now_ns: int) -> None:
        """Add a report. Negative rates count as 0; partitions that the reporter does not lead are ignored."""
        before = self._brokers.get(node_id)
        if before is not None and now_ns - before.reported_ns < REPORT_INTERVAL_NS_MIN:
            return
        self.version += 1
        weight = 1.0 if before is None else self._weight(before.smoothed_ns, now_ns)
        named = {(each.topic_id, each.partition): each for each in self._named(report)}
        listed = NO_TRAFFIC
        for key, each in named.items():
            traffic = _traffic(each)
            listed = listed.plus(traffic)
            if leader_of(key) == node_id:
                self._name(key, node_id, traffic, now_ns)
        for key in [key for key in self._named_by.get(node_id, ()) if key not in named]:
            self._decay_partition(key, leader_of(key), weight, now_ns)
        total = _traffic(report)
        rest = Traffic(*(max(0.0, whole - part) for whole, part in zip(total, listed, strict=True)))
        cpu = max(0, report.cpu_permille) / 1000
        if before is not None:
            rest = _smoothed(before.rest, rest, weight)
            cpu = before.cpu + weight * (cpu - before.cpu)
        is_busy = max(report.in_bytes_per_s, report.out_bytes_per_s) > 0
        self._brokers[node_id] = BrokerLoad(_without_traces(rest), cpu, now_ns, now_ns, is_busy)

    def decay(self, live: frozenset[NodeId], leader_of: LeaderOf, now_ns: int) -> None:
        """Decay the rates of brokers that stopped reporting, and drop brokers that are not live.

        Also drops partitions that moved and that the new leader has not reported for too long.
        """
        for node_id, load in list(self._brokers.items()):
            if node_id in live and not load.is_busy:
                self._decay_idle(node_id, load, leader_of, now_ns)
        for node_id in [node_id for node_id in self._brokers if node_id not in live]:
            del self._brokers[node_id]
            self.version += 1
        age_ns_max = self._settings.balance_report_age_ms_max * 1_000_000
        for key, held in list(self._partitions.items()):
            if now_ns - held.reported_ns > age_ns_max and leader_of(key) != held.reporter:
                self._drop(key)
                self.version += 1

    def _decay_idle(self, node_id: NodeId, load: BrokerLoad, leader_of: LeaderOf, now_ns: int) -> None:
        named = self._named_by.get(node_id)
        if not (load.rest.is_some or named):
            return
        weight = self._weight(load.smoothed_ns, now_ns)
        for key in list(named or ()):
            self._decay_partition(key, leader_of(key), weight, now_ns)
        rest = _without_traces(_smoothed(load.rest, NO_TRAFFIC, weight))
        self._brokers[node_id] = load._replace(rest=rest, smoothed_ns=now_ns)
        self.version += 1

    def broker(self, node_id: NodeId) -> BrokerLoad | None:
        """The load of a broker; None if it has not reported in this term."""
        return self._brokers.get(node_id)

    def partitions(self) -> Iterator[tuple[PartitionKey, Traffic]]:
        """All partitions with traffic."""
        for key, held in self._partitions.items():
            yield key, held.traffic

    def _named(self, report: wire.LoadReport) -> list[wire.PartitionLoad]:
        return list(report.partitions[: self._settings.balance_reported_partitions_max])

    def _name(self, key: PartitionKey, node_id: NodeId, traffic: Traffic, now_ns: int) -> None:
        held = self._partitions.get(key)
        if held is None:
            if traffic.is_some:
                held = self._partitions[key] = _Partition(traffic, node_id, now_ns)
                self._named_by.setdefault(node_id, {})[key] = held
            return
        if held.reporter != node_id:
            del self._named_by[held.reporter][key]
            self._named_by.setdefault(node_id, {})[key] = held
        weight = self._weight(held.reported_ns, now_ns)
        held.traffic = _smoothed(held.traffic, traffic, weight)
        held.reporter, held.reported_ns = node_id, now_ns

    def _decay_partition(
        self, key: PartitionKey, leader_id: NodeId | None, weight: float, now_ns: int
    ) -> None:
        """Decay the load of a partition that its last reporter no longer lists. If the partition has a new
        leader, do nothing: the new leader reports the load.
        """
        held = self._partitions[key]
        if leader_id is not None and leader_id != held.reporter:
            return
        held.traffic, held.reported_ns = _smoothed(held.traffic, NO_TRAFFIC, weight), now_ns
        if leader_id is None or not held.traffic.is_some:
            self._drop(key)

    def _drop(self, key: PartitionKey) -> None:
        held = self._partitions.pop(key)
        del self._named_by[held.reporter][key]

    def _weight(self, before_ns: int, now_ns: int) -> float:
        """The weight of the newest rate in the smoothed rate, 0 to 1."""
        smoothing_ns = self._settings.balance_smoothing_ms * 1_000_000
        if smoothing_ns == 0:
            return 1.0
        return 1.0 - math.exp(-(now_ns - before_ns) / smoothing_ns)


def _traffic(rates: wire.LoadReport | wire.PartitionLoad) -> Traffic:
    return Traffic(float(max(0, rates.in_bytes_per_s)), float(max(0, rates.out_bytes_per_s)))


def _without_traces(traffic: Traffic) -> Traffic:
    return traffic if traffic.is_some else NO_TRAFFIC


def _smoothed(before: Traffic, now: Traffic, weight: float) -> Traffic:
    return Traffic(*(old + weight * (new - old) for old, new in zip(before, now, strict=True)))
