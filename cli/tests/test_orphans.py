"""The next `ponor up` waits for what a killed one left behind, and for nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ponor_cli import orphans
from ponor_cli.cluster_file import ProcessEntry
from ponor_cli.orphans import await_orphans, runs

LIVES_UNTIL_ITS_INPUT_ENDS = "import sys; print('lives', flush=True); sys.stdin.read()"


@contextmanager
def process(config_file: str) -> Iterator[tuple[subprocess.Popen[bytes], ProcessEntry]]:
    command = [sys.executable, "-c", LIVES_UNTIL_ITS_INPUT_ENDS, "--config", config_file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"lives\n"
        yield child, ProcessEntry("broker", 0, 1, pid=child.pid, config_file="data/config/broker-0.json")


def test_a_process_that_ends_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHANS_S_MAX", 300.0)  # only a process that stays takes so long
    with process("data/config/broker-0.json") as (child, entry):
        assert runs(entry)
        assert child.stdin is not None
        child.stdin.close()
        assert await_orphans([entry]) == []
        assert not runs(entry)


def test_one_that_stays_is_told_and_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHANS_S_MAX", 0.0)
    with process("data/config/broker-0.json") as (child, entry):
        assert await_orphans([entry]) == [entry]
        assert child.poll() is None


def test_nobody_waits_for_a_number_that_somebody_else_has_now() -> None:
    with process("other/config/broker-0.json") as (_, entry):
        assert not runs(entry)
    assert not runs(ProcessEntry("gc", 0, 2, pid=None, config_file="c"))
    assert not runs(ProcessEntry("gc", 0, 2, pid=os.getpid(), config_file="no such word"))
