"""The data directory: lock, files, control socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile, ProcessEntry
from ponor_cli.local.control import ControlRequest, ControlServer, send_control, socket_path
from ponor_cli.local.directory import ClusterDirectory, read_json, write_json_atomically


def test_lock_refuses_a_second_owner(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.make()
    with directory.lock(), pytest.raises(CommandError, match="in use by another `ponor up`"):
        directory.lock()
    directory.lock().close()


def test_make_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(CommandError, match="choose another with --data"):
        ClusterDirectory(blocker / "data").make()


def test_cluster_file_reads_what_it_wrote(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    entry = ProcessEntry(
        "broker", 0, 65536, state="serving", pid=4, addresses={"kafka": "127.0.0.1:9092"}, restarts=2
    )
    written = ClusterFile("127.0.0.1:9092", ["127.0.0.1:7000"], "file:///o", "file", 1, [entry])
    written.write(directory)
    assert ClusterFile.read(directory) == written
    assert written.process("broker", 0) is entry
    with pytest.raises(CommandError, match="no broker 1"):
        written.process("broker", 1)


def test_read_names_the_remedy_when_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="ponor up --data"):
        ClusterFile.read(ClusterDirectory(tmp_path))


def test_read_json_names_a_damaged_file_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(CommandError, match=r"x\.json is not valid JSON .* remove it"):
        read_json(path)
    (tmp_path / "quorum.json").write_text("{")
    with pytest.raises(CommandError, match="do not remove it: it names the cluster"):
        read_json(tmp_path / "quorum.json")
    write_json_atomically(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert sorted(child.name for child in tmp_path.iterdir()) == ["quorum.json", "x.json"]


async def test_control_socket_returns_replies_and_refusals(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    asked: list[ControlRequest] = []

    async def handle(request: ControlRequest) -> str:
        asked.append(request)
        if request.verb == "stop":
            raise CommandError("not now")
        return "done"

    adding = ControlRequest("add", "gc", -1, {"claim_objects_max": "10"})
    stopping = ControlRequest("stop", "gc", 1)
    server = ControlServer(directory, handle)
    await server.start()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, send_control, directory, adding) == "done"
    with pytest.raises(CommandError, match="not now"):
        await loop.run_in_executor(None, send_control, directory, stopping)
    await server.close()
    assert asked == [adding, stopping]
    assert not socket_path(directory).exists()
    with pytest.raises(CommandError, match="no `ponor up` answers"):
        send_control(directory, stopping)


def test_socket_path_is_short_for_a_long_directory(tmp_path: Path) -> None:
    deep = ClusterDirectory(tmp_path / ("x" * 120))
    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) != socket_path(ClusterDirectory(tmp_path / ("y" * 120)))


def test_unmake_removes_the_directories_of_a_refused_start(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    directory = ClusterDirectory(root)
    made = directory.make()
    directory.lock().close()
    directory.unmake(made)
    assert list(tmp_path.iterdir()) == []
    directory.make()
    (root / "run" / "broker-0.json").touch()
    directory.unmake(directory.make())
    assert sorted(path.name for path in root.iterdir()) == ["config", "logs", "run"], "they were there before"
