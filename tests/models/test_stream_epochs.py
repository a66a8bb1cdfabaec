"""Stream ownership: no acknowledged record is lost to an earlier process; each rule is needed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from ponor_cluster_simulation.protocols.streams import StreamRules

from tests.models.checker import Exploration, explore
from tests.models.stream_epochs import StreamModel

TWO_RECORDS = StreamModel(processes_max=3, epoch_max=1, end_max=2, nodes=1)
TWO_NODES = StreamModel(processes_max=3, epoch_max=1, end_max=1, nodes=2)
TWO_PROCESSES = StreamModel(processes_max=2, epoch_max=1, end_max=2, nodes=1)
THREE_EPOCHS = StreamModel(processes_max=3, epoch_max=2, end_max=1, nodes=1)


def search(model: StreamModel, *dropped: str, records_only: bool = False) -> Exploration[object]:
    rules = replace(StreamRules(), **dict.fromkeys(dropped, False))
    return explore(replace(model, rules=rules, records_only=records_only))


@pytest.mark.parametrize(
    ("model", "states_min"),
    [(TWO_RECORDS, 30_000), (TWO_NODES, 50_000), (THREE_EPOCHS, 50_000)],
    ids=["two records", "two nodes", "three epochs"],
)
def test_with_all_rules_no_acknowledged_record_is_lost(model: StreamModel, states_min: int) -> None:
    found = search(model)
    assert found.complete, str(found)
    assert found.states >= states_min
    assert {"restart", "replace", "append", "upload", "give-up", "deliver"} <= set(found.taken)


A_ZOMBIE_OPENS = ["start", "replace", "ask", "deliver"]
AN_OPENING_ARRIVES_AGAIN = ["start", "ask", "deliver", "give-up", "deliver", "deliver"]
A_NEWER_OPENING_FENCES_WHAT_IS_UNCOMMITTED = ["start", "ask", "deliver", "ask", "hear", "append", "deliver"]
THE_SECOND_RECORD_BEFORE_THE_FIRST = [
    *("start", "ask", "deliver", "hear", "append", "append"),
    *("upload", "deliver", "give-up", "deliver"),
]
A_CLOSE_ARRIVES_AGAIN = [
    *("start", "ask", "deliver", "ask", "give-up", "deliver"),
    *("deliver", "hear", "append", "deliver"),
]


NEEDED = [
    ("callers_node_epoch", A_ZOMBIE_OPENS),
    ("epoch_rises", AN_OPENING_ARRIVES_AGAIN),
    ("closed_before_open", A_NEWER_OPENING_FENCES_WHAT_IS_UNCOMMITTED),
    ("commit_continues", THE_SECOND_RECORD_BEFORE_THE_FIRST),
    ("close_names_epoch", A_CLOSE_ARRIVES_AGAIN),
]
SECOND_LAYERS = ["commit_names_epoch", "commit_by_owner", "close_names_end"]


@pytest.mark.parametrize(("dropped", "actions"), NEEDED)
def test_a_dropped_rule_allows_a_violation(dropped: str, actions: list[str]) -> None:
    found = search(TWO_RECORDS, dropped)
    assert found.counter_example is not None, str(found)
    assert found.counter_example.actions == actions, str(found.counter_example)


def test_without_epochs_on_commits_a_zombie_takes_the_place_of_an_acknowledged_record() -> None:
    """The old process of a replaced machine uploads after the new one acknowledged another record
    at the offset.
    """
    found = search(TWO_PROCESSES, "callers_node_epoch", "commit_names_epoch", records_only=True)
    way = found.counter_example
    assert way is not None, str(found)
    assert way.violation == "A2 acknowledged offset 0, and there is what A1 wrote"
    assert way.actions[-1] == "deliver"
    assert "A1's commit of offset 0 under epoch 0" in way.steps[-1][0]
    assert len(way.steps) == 14


@pytest.mark.parametrize("layer", SECOND_LAYERS)
def test_a_second_layer_is_not_needed_while_the_first_holds(layer: str) -> None:
    """Correct brokers with an intact first layer never need these rules; they protect against a bug
    in the first layer.
    """
    found = search(TWO_RECORDS, layer)
    assert found.complete, str(found)


def test_either_epoch_on_a_commit_protects_the_records() -> None:
    for layer in ("callers_node_epoch", "commit_names_epoch"):
        assert search(TWO_PROCESSES, layer, records_only=True).complete


def test_every_rule_is_dropped_somewhere() -> None:
    dropped = [*(case[0] for case in NEEDED), *SECOND_LAYERS]
    assert sorted(dropped) == sorted(field.name for field in fields(StreamRules))
