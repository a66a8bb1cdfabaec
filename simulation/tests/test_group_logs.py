"""The search for faults in the records of a consumer group: each fault is constructed and found."""

from __future__ import annotations

import pytest
from ponor_cluster_simulation.histories.group_logs import GroupLog, Row, RowKind


def both(*indexes: int) -> frozenset[int]:
    return frozenset(indexes)


def member(name: str, epoch: int, *indexes: int) -> list[Row]:
    """The records of a member that has reached its target."""
    return [
        Row(RowKind.MEMBER, name),
        Row(RowKind.TARGET, name, partitions=both(*indexes)),
        Row(RowKind.CURRENT, name, epoch, both(*indexes)),
    ]


def epochs(epoch: int) -> list[Row]:
    return [Row(RowKind.EPOCH, epoch=epoch), Row(RowKind.TARGET_EPOCH, epoch=epoch)]


USED = {"a": both(0), "b": both(1, 2)}
AT_REST = [*epochs(3), *member("a", 3, 0), *member("b", 3, 1, 2)]
CLASSIC = [Row(RowKind.CLASSIC, epoch=4, shares=USED)]


def faults(*batches: list[Row]) -> list[str]:
    log = GroupLog()
    found = [*log.replay(batches), *log.at_rest(USED)]
    return [each.kind for each in found]


def test_a_group_at_rest_has_no_fault() -> None:
    assert faults([*epochs(1), *member("a", 1, 0, 1, 2)], [*member("a", 2, 0)], AT_REST) == []


def test_a_classic_group_at_rest_has_no_fault() -> None:
    gone = [row._replace(is_tombstone=True) for row in AT_REST]
    assert faults(AT_REST, [*gone, *CLASSIC]) == []


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        pytest.param([AT_REST, member("b", 3, 0, 1, 2), AT_REST], "two holders", id="before the revocation"),
        pytest.param([AT_REST, CLASSIC], "two types", id="records of both types"),
        pytest.param([[*AT_REST, *member("c", 3)]], "members", id="a member that is gone"),
        pytest.param([AT_REST[:-1]], "current assignment", id="no current assignment"),
        pytest.param([[*AT_REST, Row(RowKind.TARGET, "b")]], "target", id="another target"),
        pytest.param([[*AT_REST, Row(RowKind.EPOCH, epoch=4)]], "epochs", id="an epoch without a target"),
        pytest.param([[*AT_REST, *member("a", 2, 0)]], "epochs", id="a member with an old epoch"),
        pytest.param(
            [[Row(RowKind.CLASSIC, epoch=4, shares={"a": both(0)})]],
            "classic assignment",
            id="a classic member without its assignment",
        ),
    ],
)
def test_a_fault_is_found(batches: list[list[Row]], kind: str) -> None:
    assert kind in faults(*batches)
