"""Checks around a start of `ponor up`: processes of a killed `ponor up`, and the object store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ponor_cli.local.cluster_file import ProcessEntry
from ponor_cli.supervisor import start_checks
from ponor_cli.supervisor.start_checks import await_orphans, find_store_problem, is_running

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
RUN_UNTIL_INPUT_ENDS = "import sys; print('started', flush=True); sys.stdin.read()"


@contextmanager
def process(config_file: str) -> Iterator[tuple[subprocess.Popen[bytes], ProcessEntry]]:
    command = [sys.executable, "-c", RUN_UNTIL_INPUT_ENDS, "--config", config_file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        yield child, ProcessEntry("broker", 0, 1, pid=child.pid, config_file="data/config/broker-0.json")


def test_start_waits_for_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_checks, "ORPHANS_S_MAX", 300.0)  # only a process that stays takes so long
    with process("data/config/broker-0.json") as (child, entry):
        assert is_running(entry)
        assert child.stdin is not None
        child.stdin.close()
        assert await_orphans([entry]) == []
        assert not is_running(entry)


def test_start_reports_a_process_that_stays_and_does_not_kill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_checks, "ORPHANS_S_MAX", 0.0)
    with process("data/config/broker-0.json") as (child, entry):
        assert await_orphans([entry]) == [entry]
        assert child.poll() is None


def test_start_ignores_a_pid_that_another_process_has_now() -> None:
    with process("other/config/broker-0.json") as (_, entry):
        assert not is_running(entry)
    assert not is_running(ProcessEntry("gc", 0, 2, pid=None, config_file="c"))
    assert not is_running(ProcessEntry("gc", 0, 2, pid=os.getpid(), config_file="no such word"))


async def test_store_check_skips_a_directory() -> None:
    assert await find_store_problem("file:///nowhere", "file", {}) is None


async def test_store_check_names_an_absent_server_and_the_consequence() -> None:
    line = await find_store_problem("s3://bucket/p?endpoint=http://127.0.0.1:1", "object", KEYS)
    assert line is not None
    assert "No produced record is acknowledged until it does" in line
    assert line.startswith("THE OBJECT STORE s3://bucket/p?endpoint=http://127.0.0.1:1 DOES NOT ANSWER: ")
    assert "`ponor doctor storage" in line
    assert "\n" not in line


async def test_store_check_names_an_error_in_the_url() -> None:
    line = await find_store_problem("s3://bucket/p?place=http://127.0.0.1:1", "file", KEYS)
    assert line is not None
    assert "place" in line
