"""The search for anomalies of share groups: each anomaly is constructed and found, and a correct history has
none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.share_history import (
    Acquisition,
    Kind,
    Record,
    ShareHistory,
    find_anomalies,
)

LIMIT = 3
LOCK_S = 10.0
LOG = {0: [4, 5, 6, 7]}


class Scene:
    """Consumer `a` gets the records 4 to 7 at 1 s; accepts 4, rejects 5, releases 6 and lets 7 expire.

    Consumer `b` gets 6 and accepts it. Record 7 is delivered up to the limit, to `b` and, after a failover,
    to `c`.
    """

    def __init__(self) -> None:
        self.history = ShareHistory(LIMIT, LOCK_S)
        self.a4, self.a5, self.a6, self.a7 = (self.get("a", (0, offset), 1, 1.0) for offset in LOG[0])
        self.acknowledge(self.a4, Kind.ACCEPT, 2.0)
        self.acknowledge(self.a5, Kind.REJECT, 2.0)
        self.acknowledge(self.a6, Kind.RELEASE, 2.0)
        self.b6 = self.get("b", (0, 6), 2, 3.0)
        self.acknowledge(self.b6, Kind.ACCEPT, 4.0)
        self.b7 = self.get("b", (0, 7), 2, 12.0)
        self.c7 = self.get("c", (0, 7), 3, 13.0, term=2)

    def get(self, consumer: str, record: Record, count: int, at_s: float, term: int = 1) -> Acquisition:
        return self.history.acquired(consumer, record, term=term, count=count, asked_s=at_s - 0.1, got_s=at_s)

    def acknowledge(
        self, acquisition: Acquisition, kind: Kind, at_s: float, *, is_confirmed: bool = True
    ) -> None:
        sent = self.history.acknowledging(acquisition, kind, at_s)
        if is_confirmed:
            self.history.confirmed(sent, at_s + 0.1)
        else:
            sent.is_refused = True

    def kinds(self) -> list[str]:
        return [each.kind for each in find_anomalies(self.history, LOG)]


Change = Callable[[Scene], object]


def no_change(_: Scene) -> None:
    pass


def renew_and_accept(scene: Scene) -> None:
    """`c` holds record 7 for longer, and accepts it."""
    scene.acknowledge(scene.c7, Kind.RENEW, 20.0)
    scene.acknowledge(scene.c7, Kind.ACCEPT, 28.0)


def ignore_renewal(scene: Scene) -> None:
    """`d` gets record 7 after `c` renewed its lock."""
    scene.acknowledge(scene.c7, Kind.RENEW, 20.0)
    scene.get("d", (0, 7), 4, 25.0, term=2)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(no_change, id="nothing"),
        pytest.param(renew_and_accept, id="a renewed lock"),
        pytest.param(
            lambda s: s.acknowledge(s.b7, Kind.ACCEPT, 14.0, is_confirmed=False),
            id="a refused acknowledgement after a failover",
        ),
        pytest.param(
            lambda s: s.history.acquired("b", (0, 4), term=1, count=2, asked_s=2.05, got_s=2.2),
            id="a request from before the confirmation",
        ),
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
        pytest.param(
            lambda s: s.get("b", (0, 4), 2, 5.0, term=2), "delivered after the end", id="after a failover"
        ),
        pytest.param(
            lambda s: s.get("d", (0, 7), 4, 40.0, term=3), "delivered too often", id="above the limit"
        ),
        pytest.param(lambda s: s.get("d", (0, 7), 3, 40.0, term=2), "delivery count", id="the same count"),
        pytest.param(
            lambda s: s.acknowledge(s.a7, Kind.ACCEPT, 15.0),
            "acknowledged without a lock",
            id="after the lock expired",
        ),
        pytest.param(lambda s: s.acknowledge(s.a6, Kind.ACCEPT, 5.0), "acknowledged twice", id="two accepts"),
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
    before_s = scene.b7.until_s
    scene.acknowledge(scene.b7, Kind.RENEW, before_s + 1.0)
    assert scene.b7.until_s == before_s
