"""`ponor group` without a cluster: new offsets, contradicting options, and names of partitions."""

from __future__ import annotations

from typing import Any

import pytest
from ponor_cli.clients import group_offsets
from ponor_cli.clients.group_offsets import EARLIEST, LATEST, GroupOffset, Reset, ResetTarget, planned
from ponor_cli.commands.group import _wall_ms, short_names
from ponor_cli.errors import CommandError
from ponor_cli.main import app
from typer.testing import CliRunner

PLACE = ("orders", 0)


def new_offset(monkeypatch: pytest.MonkeyPatch, target: ResetTarget, before: int | None = None) -> int:
    """Reset a partition with the offsets 100 to 200, and a record of time 5 at 150."""

    def offsets_at(_: Any, __: Any, places: Any, timestamp_ms: int) -> dict[tuple[str, int], int]:
        found = {EARLIEST: 100, LATEST: 200, 5: 150}.get(timestamp_ms)
        return {} if found is None else dict.fromkeys(places, found)

    monkeypatch.setattr(group_offsets, "offsets_at", offsets_at)
    monkeypatch.setattr(group_offsets, "known_leaders", lambda *_: {PLACE: 1})
    brokers: Any = None
    (reset,) = planned(brokers, [GroupOffset(PLACE, before, 200, None)], [PLACE], target)
    assert reset == Reset(PLACE, before, reset.after)
    return reset.after


@pytest.mark.parametrize(
    ("target", "before", "after"),
    [
        (ResetTarget(timestamp_ms=EARLIEST), None, 100),
        (ResetTarget(timestamp_ms=LATEST), 150, 200),
        (ResetTarget(timestamp_ms=5), 120, 150),
        (ResetTarget(timestamp_ms=6), 120, 200),
        (ResetTarget(offset=130), None, 130),
        (ResetTarget(offset=0), 150, 100),
        (ResetTarget(offset=999), 150, 200),
        (ResetTarget(shift=-10), 150, 140),
        (ResetTarget(shift=-100), 150, 100),
        (ResetTarget(shift=0), 150, 150),
    ],
)
def test_an_offset_outside_of_the_log_becomes_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, target: ResetTarget, before: int | None, after: int
) -> None:
    assert new_offset(monkeypatch, target, before) == after


def test_a_missing_offset_cannot_be_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="no offset in orders-0 that could be shifted"):
        new_offset(monkeypatch, ResetTarget(shift=1))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--topic t --to-earliest --execute --dry-run", "contradict"),
        ("--to-earliest", "give --topic"),
        ("--topic t --all-topics --to-earliest", "give --topic"),
        ("--topic t", "choose one new offset"),
        ("--topic t --to-earliest --to-offset 1", "choose one new offset"),
        ("--topic t --to-datetime noon", "--to-datetime noon: write 2026-03-01T12:00:00"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["group", "reset-offsets", "g", *words.split()])
    assert isinstance(result.exception, CommandError)
    assert problem in str(result.exception)


def test_times_without_an_offset_are_utc() -> None:
    assert _wall_ms("1970-01-01T01:00:00") == 3_600_000
    assert _wall_ms("1970-01-01T01:00:00.5+01:00") == 500
    with pytest.raises(CommandError, match="after 1970"):
        _wall_ms("1969-12-31")


def test_partitions_of_a_topic_are_named_by_ranges() -> None:
    places = [("b", 1), ("a", 3), ("a", 0), ("a", 1), ("a", 2), ("a", 7)]
    assert short_names(places) == ["a-0..3,7", "b-1"]
