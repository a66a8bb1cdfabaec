"""The search for anomalies of consumer groups: each anomaly is constructed and found, and a correct history
has none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor_cluster_simulation.histories.groups import (
    NO_OFFSET,
    Commit,
    Delivery,
    GroupHistory,
    SeenOffset,
    find_anomalies,
)

STALE_S = 1.0


class Scene:
    """Member `a` has partitions 0 and 1, and gives up 1 at 4 s, which `b` gets at 5 s."""

    def __init__(self) -> None:
        self.history = history = GroupHistory(STALE_S)
        history.got("a", [0, 1], 1.0, 3.0)
        history.confirmed("a", 2.0, 6.0)
        self.deliver("a", 1, 0, 10)
        self.deliver("a", 0, 0, 7)
        self.commit("a", 1, 6, 2.0, 2.1)
        self.commit("a", 1, 10, 3.0, 3.1)
        self.commit("a", 0, 7, 3.0, 3.1)
        history.gave_up("a", [1], 4.0)
        history.confirmed("a", 5.0, 30.0)
        history.got("b", [1], 5.0, 30.0)
        self.see(1, 10, 5.1)
        self.deliver("b", 1, 10, 15)
        self.commit("b", 1, 15, 7.0, 7.1)

    def deliver(self, member: str, partition: int, start: int, end: int) -> None:
        self.history.deliveries.append(Delivery(member, partition, start, end))

    def commit(
        self,
        member: str,
        partition: int,
        offset: int,
        asked_s: float,
        told_s: float | None,
        *,
        is_refused: bool = False,
    ) -> None:
        self.history.commits.append(Commit(member, partition, offset, asked_s, told_s, is_refused))

    def see(self, partition: int, offset: int, asked_s: float) -> None:
        self.history.seen_offsets.append(SeenOffset(partition, offset, asked_s, asked_s + 0.1))

    def kinds(self) -> list[str]:
        return [each.kind for each in find_anomalies(self.history, {0: 7, 1: 15})]


Change = Callable[[Scene], object]


def no_change(_: Scene) -> None:
    pass


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(no_change, id="nothing"),
        pytest.param(lambda s: s.history.got("c", [0], 31.0, 40.0), id="a member after a session ended"),
        pytest.param(lambda s: s.commit("a", 1, 12, 5.5, None), id="an unanswered commit of a former member"),
        pytest.param(lambda s: s.commit("a", 1, 12, 5.5, None, is_refused=True), id="a refused commit"),
        pytest.param(lambda s: s.see(1, 10, 7.2), id="an answer of a replaced coordinator"),
        pytest.param(lambda s: s.see(1, 15, 9.0), id="the newest offset"),
        pytest.param(lambda s: (s.commit("b", 1, 13, 6.0, None), s.see(1, 13, 9.0)), id="a late commit"),
        pytest.param(lambda s: s.deliver("b", 1, 3, 9), id="records received again"),
    ],
)
def test_a_correct_history_has_no_anomaly(change: Change) -> None:
    scene = Scene()
    change(scene)
    assert not scene.kinds()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        pytest.param(lambda s: s.history.got("c", [0], 20.0, 25.0), "two owners", id="a second member"),
        pytest.param(
            lambda s: (s.history.got("c", [2], 4.0, 9.0), s.history.got("d", [2], 6.0, 8.0)),
            "two owners",
            id="within the time of another member",
        ),
        pytest.param(
            lambda s: s.commit("a", 1, 11, 8.0, 8.1), "commit without right", id="a former member commits"
        ),
        pytest.param(lambda s: s.see(1, 12, 9.0), "invented offset", id="an offset without a commit"),
        pytest.param(lambda s: s.see(1, 99, 5.2), "invented offset", id="an offset from the future"),
        pytest.param(lambda s: s.see(1, 10, 9.0), "lost offset", id="the commit before is returned"),
        pytest.param(lambda s: s.see(1, NO_OFFSET, 9.0), "lost offset", id="all commits are lost"),
        pytest.param(
            lambda s: (s.commit("a", 1, 12, 3.5, None), s.see(1, 12, 9.0)),
            "lost offset",
            id="a late commit of a former member",
        ),
        pytest.param(lambda s: s.deliver("b", 1, 16, 17), "skipped records", id="a gap"),
        pytest.param(lambda s: s.history.fenced.append("a"), "fenced without a reason", id="fenced"),
        pytest.param(lambda s: s.history.deliveries.pop(), "skipped records", id="the end was not read"),
    ],
)
def test_an_anomaly_is_found(change: Change, kind: str) -> None:
    scene = Scene()
    change(scene)
    assert kind in scene.kinds()


def test_a_lapsed_time_is_not_continued() -> None:
    """Another member may have had the partition meanwhile, and a late answer does not show this."""
    history = GroupHistory(STALE_S)
    history.got("a", [0], 1.0, 3.0)
    history.confirmed("a", 3.5, 6.0)
    history.got("b", [0], 4.0, 5.0)
    assert not find_anomalies(history)


def test_the_newest_acknowledged_commit_counts() -> None:
    scene = Scene()
    scene.commit("b", 1, 16, 8.0, None)
    assert scene.history.acknowledged(1) == 15
    assert scene.history.acknowledged(2) == NO_OFFSET
    assert scene.history.count_acknowledged() == 4
