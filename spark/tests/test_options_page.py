"""Test that the documentation lists every option and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ponor_spark.options import OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "spark.md"


def test_the_page_names_every_option_once() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`([\w.]+)`", " ".join(rows))) == sorted(OPTIONS)
