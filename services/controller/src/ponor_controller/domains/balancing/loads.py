"""What brokers said they carry, smoothed.

What lives here: reports in, rates out; pure, with the time as an argument. Nothing here is replicated: a controller that begins to lead hears all of it again
within seconds.

The load of a partition belongs to the partition, not to the broker that reported it. It goes with the partition when that moves, so nothing that the balancer
decides waits until the reports of two brokers have caught up with a move. What a report counts in its totals and does not name stays with the broker
(`BrokerLoad.rest`).
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
"""Who leads a partition, by the committed image; None when there is no such partition."""

REPORT_INTERVAL_NS_MIN: Final = 100_000_000
"""Reports that come faster than this say nothing new, and are not looked at."""
TRAFFIC_BYTES_PER_S_MIN: Final = 1.0
"""What fell below this is forgotten: a rate that is smoothed never becomes zero by itself."""


class Traffic(NamedTuple):
    """Bytes per second."""

    in_bytes_per_s: float
    out_bytes_per_s: float

    def plus(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.in_bytes_per_s + other.in_bytes_per_s, self.out_bytes_per_s + other.out_bytes_per_s
        )

    @property
    def is_some(self) -> bool:
        """Whether there is any worth the name."""
        return max(self) >= TRAFFIC_BYTES_PER_S_MIN


NO_TRAFFIC: Final = Traffic(0.0, 0.0)


class BrokerLoad(NamedTuple):
    """What the reports of one broker say, beside its named partitions."""

    rest: Traffic
    """Traffic of partitions that the reports did not name."""
    cpu: float
    """Share of one core."""
    reported_ns: int
    """When the last report came."""
    settled_ns: int
    """Up to when the figures are smoothed."""
    is_busy: bool
    """Whether the last report had traffic in it: then others must follow. If not, silence says that there is still none."""


@dataclass(slots=True)
class _Partition:
    """A named partition, and who named it last."""

    traffic: Traffic
    reporter: NodeId
    reported_ns: int


class LoadBook:
    """Bounded: one row a broker that has a session, one a partition that exists and is led by who reported it."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._brokers: dict[NodeId, BrokerLoad] = {}
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._named_by: dict[NodeId, dict[PartitionKey, _Partition]] = {}
        self.version = 0
        """Rises with everything that is taken or forgotten."""

    def clear(self) -> None:
        """Forget all: leadership ended, or begins."""
        self._brokers.clear()
        self._partitions.clear()
        self._named_by.clear()
        self.version += 1

    def take(self, node_id: NodeId, report: wire.LoadReport, leader_of: LeaderOf, now_ns: int) -> None:
        """Take a report; negative figures count as none. Partitions that the reporter does not lead (any more) are not its own to speak of."""
        before = self._brokers.get(node_id)
        if before is not None and now_ns - before.reported_ns < REPORT_INTERVAL_NS_MIN:
            return
        self.version += 1
        weight = 1.0 if before is None else self._weight(before.settled_ns, now_ns)
        named = {(each.topic_id, each.partition): each for each in self._named(report)}
        listed = NO_TRAFFIC
        for key, each in named.items():
            traffic = _traffic(each)
            listed = listed.plus(traffic)
            if leader_of(key) == node_id:
                self._name(key, node_id, traffic, now_ns)
        for key in [key for key in self._named_by.get(node_id, ()) if key not in named]:
            self._fade(key, leader_of(key), weight, now_ns)
        total = _traffic(report)
        rest = Traffic(*(max(0.0, whole - part) for whole, part in zip(total, listed, strict=True)))
        cpu = max(0, report.cpu_permille) / 1000
        if before is not None:
            rest = _smoothed(before.rest, rest, weight)
            cpu = before.cpu + weight * (cpu - before.cpu)
        is_busy = max(report.in_bytes_per_s, report.out_bytes_per_s) > 0
        self._brokers[node_id] = BrokerLoad(_worth_it(rest), cpu, now_ns, now_ns, is_busy)

    def settle(self, live: frozenset[NodeId], leader_of: LeaderOf, now_ns: int) -> None:
        """Let time pass: brokers without traffic say nothing, so what they had fades; who is gone is forgotten.

        So are partitions of which their leader said nothing for too long.
        """
        for node_id, load in list(self._brokers.items()):
            if node_id in live and not load.is_busy:
                self._settle_idle(node_id, load, leader_of, now_ns)
        for node_id in [node_id for node_id in self._brokers if node_id not in live]:
            del self._brokers[node_id]
            self.version += 1
        age_ns_max = self._settings.balance_report_age_ms_max * 1_000_000
        for key, held in list(self._partitions.items()):
            if now_ns - held.reported_ns > age_ns_max and leader_of(key) != held.reporter:
                self._forget(key)
                self.version += 1

    def _settle_idle(self, node_id: NodeId, load: BrokerLoad, leader_of: LeaderOf, now_ns: int) -> None:
        named = self._named_by.get(node_id)
        if not (load.rest.is_some or named):
            return
        weight = self._weight(load.settled_ns, now_ns)
        for key in list(named or ()):
            self._fade(key, leader_of(key), weight, now_ns)
        rest = _worth_it(_smoothed(load.rest, NO_TRAFFIC, weight))
        self._brokers[node_id] = load._replace(rest=rest, settled_ns=now_ns)
        self.version += 1

    def broker(self, node_id: NodeId) -> BrokerLoad | None:
        """What a broker reported; None when it did not in this term."""
        return self._brokers.get(node_id)

    def partitions(self) -> Iterator[tuple[PartitionKey, Traffic]]:
        """Partitions with traffic."""
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

    def _fade(self, key: PartitionKey, leader_id: NodeId | None, weight: float, now_ns: int) -> None:
        """A partition that its reporter named before, and no more: it has no traffic, or moved; then its new leader speaks of it."""
        held = self._partitions[key]
        if leader_id is not None and leader_id != held.reporter:
            return
        held.traffic, held.reported_ns = _smoothed(held.traffic, NO_TRAFFIC, weight), now_ns
        if leader_id is None or not held.traffic.is_some:
            self._forget(key)

    def _forget(self, key: PartitionKey) -> None:
        held = self._partitions.pop(key)
        del self._named_by[held.reporter][key]

    def _weight(self, before_ns: int, now_ns: int) -> float:
        """How much the newest figure counts."""
        smoothing_ns = self._settings.balance_smoothing_ms * 1_000_000
        if smoothing_ns == 0:
            return 1.0
        return 1.0 - math.exp(-(now_ns - before_ns) / smoothing_ns)


def _traffic(rates: wire.LoadReport | wire.PartitionLoad) -> Traffic:
    return Traffic(float(max(0, rates.in_bytes_per_s)), float(max(0, rates.out_bytes_per_s)))


def _worth_it(traffic: Traffic) -> Traffic:
    return traffic if traffic.is_some else NO_TRAFFIC


def _smoothed(before: Traffic, now: Traffic, weight: float) -> Traffic:
    return Traffic(*(old + weight * (new - old) for old, new in zip(before, now, strict=True)))
