"""The log in the store: no acknowledged record is lost to a zombie, a recoverer or a late put; each
rule is needed.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest

from tests.models.checker import Exploration, explore
from tests.models.object_wal import WalModel
from tests.models.wal_world import WalRules

SMALL = WalModel()
TWO_STREAMS = WalModel(streams=2)
MOVED = WalModel(moves=True)
THREE_EPOCHS = WalModel(epochs_max=3)
LARGE = "PONOR_LARGE_MODELS" in os.environ


def search(model: WalModel, *dropped: str) -> Exploration[object]:
    return explore(replace(model, rules=replace(WalRules(), **dict.fromkeys(dropped, False))))


@pytest.mark.parametrize(
    ("model", "states_min"),
    [
        (WalModel(copies_max=1), 20_000),
        (TWO_STREAMS, 30_000),
        (WalModel(appends_max=3), 25_000),
        (WalModel(epochs_max=3, appends_max=1), 5_000),
        (WalModel(moves=True, copies_max=1), 30_000),
    ],
    ids=["late copies of puts", "two streams", "three appends", "three epochs", "a planned move"],
)
def test_with_all_rules_no_acknowledged_record_is_lost(model: WalModel, states_min: int) -> None:
    found = search(model)
    assert found.complete, str(found)
    assert found.states >= states_min
    assert {"bump", "append", "fence", "land", "read", "end", "replay", "close", "open", "stop"} <= set(
        found.taken
    )


@pytest.mark.skipif(not LARGE, reason="minutes; set PONOR_LARGE_MODELS")
@pytest.mark.parametrize(
    "model",
    [
        THREE_EPOCHS,
        WalModel(appends_max=3, copies_max=1),
        WalModel(appends_max=4, in_flight_max=3),
        WalModel(epochs_max=3, appends_max=1, copies_max=2, moves=True),
        WalModel(streams=2, copies_max=1),
    ],
)
def test_with_all_rules_at_larger_sizes(model: WalModel) -> None:
    found = search(model)
    assert found.complete, str(found)


LOST = "its stream went on without it"
UNREACHED = "no walk reaches it"
FORGOTTEN = "no recovery will read it"

# The numbers are those of the table in docs/design/object-wal.md#safety-rules.
NEEDED = [
    (1, SMALL, ("fence_stays",), 11, LOST),
    (2, SMALL, ("fenced",), 7, LOST),
    (3, SMALL, ("taken_is_read",), 7, UNREACHED),
    (4, SMALL, ("acknowledged_in_order",), 5, UNREACHED),
    (5, SMALL, ("deleted_after_commit",), 6, UNREACHED),
    (6, SMALL, ("walks_from_trim",), 10, "is committed where the stream ends at 0"),
    (7, SMALL, ("trim_with_bump",), 17, LOST),
    (8, SMALL, ("old_epochs_refused",), 16, LOST),
    (9, TWO_STREAMS, ("closed_when_all_done",), 11, FORGOTTEN),
    (10, THREE_EPOCHS, ("opened_before_put",), 10, FORGOTTEN),
    (11, THREE_EPOCHS, ("only_open_logs", "stream_epoch_filter"), 12, "is committed"),
    (12, MOVED, ("stream_epoch_filter",), 9, "of stream epoch 1 is committed at epoch 2"),
    (13, THREE_EPOCHS, ("offset_filter",), 12, "is committed twice"),
    (14, SMALL, ("opened_after_recovery",), 7, LOST),
]


@pytest.mark.parametrize(
    ("model", "dropped", "steps", "violation"),
    [case[1:] for case in NEEDED],
    ids=[f"no. {case[0]}" for case in NEEDED],
)
def test_a_dropped_rule_allows_a_violation(
    model: WalModel, dropped: tuple[str, ...], steps: int, violation: str
) -> None:
    found = search(model, *dropped)
    assert found.counter_example is not None, str(found)
    assert violation in found.counter_example.violation, str(found.counter_example)
    assert len(found.counter_example.steps) == steps, str(found.counter_example)


def test_without_the_fence_a_zombie_acknowledges_a_record_that_no_recovery_reads() -> None:
    """Everything is recovered and closed, and then the old put arrives at the deleted fence's place."""
    way = search(SMALL, "fence_stays").counter_example
    assert way is not None
    assert way.actions[-5:] == ["close", "delete", "land", "hear", "acknowledge"]


@pytest.mark.parametrize("fenced", [True, False])
def test_a_check_at_the_controller_replaces_conditional_puts(
    fenced: bool,
) -> None:
    dropped = () if fenced else ("fenced",)
    asked = search(WalModel(trusts_store=False, verifies=True, copies_max=1), *dropped)
    assert asked.complete, str(asked)
    unasked = search(WalModel(trusts_store=False), *dropped)
    assert unasked.counter_example is not None
    assert "was acknowledged, and" in unasked.counter_example.violation


def test_every_rule_is_dropped_somewhere() -> None:
    dropped = {name for case in NEEDED for name in case[2]}
    assert dropped == {field.name for field in fields(WalRules)}
