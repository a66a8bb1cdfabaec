"""The search for anomalies of share groups: each anomaly is constructed and found, and a correct history has
none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor_cluster_simulation.histories.share_groups import (
    Acquisition,
    Kind,
    Record,
    ShareHistory,
    find_anomalies,
)

LIMIT = 3
LOCK_S = 10.0
STALE_S = 0.5
ENDS = {0: 8}
NODE = 1


class Scene:
    """Consumer `a` gets the records 4 to 7 at 1 s; accepts 4, rejects 5, releases 6 and lets 7 expire.

    Consumer `b` gets 6 and accepts it. Record 7 is delivered up to the limit, to `b` and, after a failover at
    20 s, to `c`. Each session lasts for 8 s.
    """

    def __init__(self) -> None:
        self.history = ShareHistory(LIMIT, LOCK_S, STALE_S)
        self.history.elected(0, NODE, 1, 0.0)
        self.history.elected(0, NODE, 2, 20.0)
        self.a4, self.a5, self.a6, self.a7 = (self.get("a", (0, offset), 1, 1.0) for offset in range(4, 8))
        self.acknowledge(self.a4, Kind.ACCEPT, 2.0)
        self.acknowledge(self.a5, Kind.REJECT, 2.0)
        self.acknowledge(self.a6, Kind.RELEASE, 2.0)
        self.b6 = self.get("b", (0, 6), 2, 3.0)
        self.acknowledge(self.b6, Kind.ACCEPT, 4.0)
        self.b7 = self.get("b", (0, 7), 2, 12.0)
        self.c7 = self.get("c", (0, 7), 3, 23.0)

    def get(
        self,
        consumer: str,
        record: Record,
        count: int,
        at_s: float,
        *,
        node: int = NODE,
        session_s: float = 8.0,
    ) -> Acquisition:
        found = self.history.acquired(
            consumer, record, node=node, count=count, asked_s=at_s - 0.1, got_s=at_s
        )
        found.seen_s = at_s + session_s
        return found

    def acknowledge(
        self, acquisition: Acquisition, kind: Kind, at_s: float, *, is_confirmed: bool = True
    ) -> None:
        sent = self.history.acknowledging(acquisition, kind, at_s)
        if is_confirmed:
            self.history.confirmed(sent, at_s + 0.1)
        else:
            self.history.refused([sent], at_s + 0.1)

    def kinds(self) -> list[str]:
        return [each.kind for each in find_anomalies(self.history, ENDS)]


Change = Callable[[Scene], object]


def renew_and_accept(scene: Scene) -> None:
    """`c` holds record 7 for longer, and accepts it."""
    scene.acknowledge(scene.c7, Kind.RENEW, 30.0)
    scene.acknowledge(scene.c7, Kind.ACCEPT, 38.0)


def ignore_renewal(scene: Scene) -> None:
    """`d` gets record 7 after `c` renewed its lock."""
    scene.acknowledge(scene.c7, Kind.RENEW, 30.0)
    scene.c7.seen_s = 36.0
    scene.get("d", (0, 7), 3, 35.0)


def accept_below_the_start(scene: Scene) -> None:
    """`a` accepts a record that `b` has accepted, when no lower record can be delivered any more."""
    scene.acknowledge(scene.a6, Kind.ACCEPT, 5.0)


def accept_twice_above_the_start(scene: Scene) -> None:
    """`a` accepts a record that `b` has accepted; later a lower record is delivered."""
    late = scene.get("a", (0, 3), 1, 1.0)
    scene.acknowledge(scene.a6, Kind.ACCEPT, 5.0)
    scene.acknowledge(late, Kind.RELEASE, 6.0)
    scene.acknowledge(scene.get("b", (0, 3), 2, 7.0), Kind.ACCEPT, 8.0)


def lose_deliveries(scene: Scene) -> None:
    """Record 7 was delivered once, and then in answers that no consumer received."""
    for each in (scene.b7, scene.c7):
        scene.history.acquisitions.remove(each)
    scene.history.unanswered[0] += [12.0, 23.0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="nothing"),
        pytest.param(renew_and_accept, id="a renewed lock"),
        pytest.param(
            lambda s: s.acknowledge(s.b7, Kind.ACCEPT, 25.0, is_confirmed=False),
            id="a refused acknowledgement after a failover",
        ),
        pytest.param(
            lambda s: s.history.acquired("b", (0, 4), node=NODE, count=2, asked_s=2.05, got_s=2.2),
            id="a request from before the confirmation",
        ),
        pytest.param(lambda s: s.get("d", (0, 7), 3, 20.2, node=2), id="a leader that was just replaced"),
        pytest.param(accept_below_the_start, id="an acknowledgement below the start"),
        pytest.param(lose_deliveries, id="deliveries in lost answers"),
    ],
)
def test_a_correct_history_has_no_anomaly(change: Change) -> None:
    scene = Scene()
    change(scene)
    assert not scene.kinds()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        pytest.param(lambda s: s.get("b", (0, 7), 2, 5.0), "two holders", id="a lock is ignored"),
        pytest.param(ignore_renewal, "two holders", id="a renewal is ignored"),
        pytest.param(lambda s: s.get("b", (0, 4), 2, 5.0), "delivered after the end", id="after an accept"),
        pytest.param(lambda s: s.get("b", (0, 5), 2, 5.0), "delivered after the end", id="after a reject"),
        pytest.param(lambda s: s.get("b", (0, 4), 2, 25.0), "delivered after the end", id="after a failover"),
        pytest.param(lambda s: s.get("d", (0, 7), 4, 40.0), "delivered too often", id="above the limit"),
        pytest.param(lambda s: s.get("d", (0, 7), 3, 40.0), "delivery count", id="the same count"),
        pytest.param(
            lambda s: s.acknowledge(s.get("d", (0, 6), 1, 25.0), Kind.ACCEPT, 26.0),
            "delivery count",
            id="a released count is lost in a failover",
        ),
        pytest.param(
            lambda s: s.acknowledge(s.a7, Kind.ACCEPT, 15.0),
            "acknowledged without a lock",
            id="after the lock expired",
        ),
        pytest.param(
            lambda s: s.acknowledge(s.b7, Kind.ACCEPT, 13.0, is_confirmed=False),
            "refused a holder",
            id="a holder is refused",
        ),
        pytest.param(accept_twice_above_the_start, "acknowledged twice", id="two accepts"),
        pytest.param(lambda s: s.history.acquisitions.pop(), "lost record", id="fewer deliveries"),
    ],
)
def test_an_anomaly_is_found(change: Change, kind: str) -> None:
    scene = Scene()
    change(scene)
    assert kind in scene.kinds()


def test_a_lapsed_lock_is_not_renewed() -> None:
    """Another consumer may have had the record meanwhile."""
    scene = Scene()
    before_s = scene.b7.lock_ends_s
    scene.acknowledge(scene.b7, Kind.RENEW, before_s + 1.0)
    assert scene.b7.lock_ends_s == before_s
