"""The supervisor and the launcher: full disks, slow starts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile, ProcessEntry
from ponor_cli.local.directory import ClusterDirectory, write_json_atomically
from ponor_cli.local.quorum_file import ControllerPlace, QuorumFile
from ponor_cli.supervisor.launcher import Child, Launcher
from ponor_cli.supervisor.plan import ClusterConfiguration, ProcessSpec
from ponor_cli.supervisor.process_report import waiting_line
from ponor_cli.supervisor.supervisor import Supervisor


async def test_supervisor_continues_when_the_cluster_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.make()
    directory.cluster_file.mkdir()
    supervisor = Supervisor(
        directory,
        ClusterFile("127.0.0.1:1", [], "file:///o", "file", 1, []),
        [],
        places=ClusterConfiguration(directory, "127.0.0.1", [], "file:///o", 9092, "file"),
        quorum=QuorumFile([ControllerPlace(0)]),
        restart=True,
        environment={},
    )
    await supervisor.stop()
    assert f"{directory.cluster_file}" in capsys.readouterr().out


def test_write_json_names_the_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError, match=r"x\.json"):
        write_json_atomically(tmp_path / "x.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_lock_refuses_when_the_lock_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "supervisor.lock").mkdir()
    with pytest.raises(CommandError, match="choose another with --data"):
        ClusterDirectory(tmp_path).lock()


def test_waiting_line_shows_the_last_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "broker-0.log"
    assert waiting_line("broker 0", 10.2, log).endswith("empty")
    log.write_text(
        "2026-01-01 00:00:00,000 INFO ponor.broker: one\n2026-01-01 00:00:01,000 WARNING ponor.broker: the"
        " disk is full\n"
    )
    assert (
        waiting_line("broker 0", 20.0, log)
        == f"broker 0 does not serve after 20 s; last line of {log}: the disk is full"
    )


async def test_start_continues_without_a_process_that_waits_for_the_object_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.make()
    launcher = Launcher(directory, {}, lambda: None)
    child = Child(ProcessSpec("gc", 0, 66536, {}), ProcessEntry.planned(directory, "gc", 0, 66536))
    child.process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    try:
        await launcher.await_first_ready(child, patience_s=0)
        assert "the start continues without it" in capsys.readouterr().out
        assert child.runs
    finally:
        child.process.kill()
        await child.process.wait()
    directory.log_file("gc-0").write_text("ponor_gc: another cluster\n")
    with pytest.raises(CommandError, match="another cluster"):
        await launcher.await_first_ready(child, patience_s=0)
    launcher.close()
