"""Scripts in `scenarios/` have the expected outcomes. `PONOR_REWRITE_SCENARIOS=1` rewrites the
outcomes; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libs.raft.tests.scenario_script import Script, script_of

SCRIPTS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = script_of(path)
    outcome = Script().run(text)
    if os.environ.get("PONOR_REWRITE_SCENARIOS"):
        path.write_text(outcome, encoding="utf-8")
    assert outcome == text


def test_scenarios_are_there() -> None:
    assert len(SCRIPTS) > 15
