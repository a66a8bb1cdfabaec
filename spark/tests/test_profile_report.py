"""Tests of a profile's formatted numbers and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.errors import OptionError
from ponor_spark.jobs.profile.report import (
    headline,
    human_bytes,
    human_count,
    human_width,
    print_profile,
    share,
    spark_line,
)
from ponor_spark.jobs.profile.topic_profile import (
    BINS,
    WIDTHS_MS,
    Bin,
    PartitionProfile,
    TopicProfile,
    width_ms,
)
from rich.console import Console

HOUR = 3_600_000
START = 1_700_000_000_000 // HOUR * HOUR


def profile_of(records: int) -> TopicProfile:
    partitions = [
        PartitionProfile(
            "orders", n, records, records * 100, 0, records - 1, START, START + 3 * HOUR, n, 0, 5
        )
        for n in range(3)
    ]
    sizes = [0] * 32
    sizes[7] = 3 * records
    bins = [Bin(START + n * HOUR, n * records, n * records * 100) for n in range(3)]
    return TopicProfile("orders", partitions if records else [], 5, HOUR, bins, sizes, (90, 100, 110, 120))


@given(st.integers(0, 1 << 43), st.integers(0, 1 << 43))
def test_bars_are_few_enough_and_not_needlessly_wide(one: int, other: int) -> None:
    first, last = sorted((one, other))
    width = width_ms(first, last)
    assert last // width - first // width < BINS
    assert all(last // narrower - first // narrower >= BINS for narrower in WIDTHS_MS if narrower < width)


def test_numbers_read_like_numbers() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [human_count(n) for n in (7, 1234, 5_600_000)] == ["7", "1.23 k", "5.6 M"]
    assert [human_width(n) for n in (100, 1000, 900_000, 86_400_000)] == [
        "100 ms",
        "second",
        "15 minutes",
        "day",
    ]
    assert [share(n, 1000) for n in (0, 1, 500, 999, 1000)] == ["0 %", "<1 %", "50 %", ">99 %", "100 %"]
    assert spark_line([0, 1, 8, 8000]) == " ▁▁█"
    assert headline(profile_of(0)) == "orders: no records"


def test_the_terminal_shows_every_partition(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(profile_of(40), Console(width=160))
    shown = capsys.readouterr().out
    assert shown.startswith("orders: 120 records, 11.7 KiB in 3 partitions, about 5 distinct keys")
    assert sum(line.lstrip().startswith(("0 ", "1 ", "2 ")) for line in shown.splitlines()) == 3
    assert "records by hour" in shown


def test_the_picture_is_drawn_in_the_kind_that_its_name_says(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is installed for `make test-spark` alone")
    from ponor_spark.jobs.profile.picture import draw

    draw(profile_of(40), tmp_path / "orders.svg")
    assert "<svg" in (tmp_path / "orders.svg").read_text()[:500]
    with pytest.raises(OptionError, match="no supported picture suffix"):
        draw(profile_of(40), tmp_path / "orders.txt")
    with pytest.raises(OptionError, match="has no records"):
        draw(profile_of(0), tmp_path / "orders.png")
