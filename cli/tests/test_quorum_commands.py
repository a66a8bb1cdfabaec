"""`ponor cluster quorum` without a running cluster: descriptions, refusals, forced recovery."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from pathlib import Path

import pytest
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_cli.commands.quorum import describe_quorum, silence_of_voter
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory, write_json_atomically
from ponor_cli.local.forced_recovery import force_local_recovery, force_one_recovery
from ponor_cli.local.quorum_file import ControllerPlace, QuorumFile
from ponor_cli.main import app
from ponor_cli.supervisor.membership import ControllerChanges
from typer.testing import CliRunner

RUNNER = CliRunner()


def refusal(*words: str) -> str:
    """What a command says that must fail."""
    done = RUNNER.invoke(app, ["cluster", "quorum", *words])
    assert done.exit_code != 0, done.output
    return f"{done.output}{done.exception or ''}"


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterDirectory:
    """A stopped cluster of three controllers, of which nothing ever ran."""
    directory = ClusterDirectory(tmp_path)
    directory.make()
    QuorumFile.open(directory, 3)
    return directory


def test_describe_quorum_shows_status_and_lag() -> None:
    def member(number: int, *, voter: bool, match_index: int, silent_ms: int = 10) -> wire.MemberState:
        return wire.MemberState(
            node_id=number,
            directory_id=uuid.UUID(int=number).bytes,
            peer_address=f"h{number}:1",
            service_address=f"h{number}:2",
            voter=voter,
            match_index=match_index,
            silent_ms=silent_ms,
            behind_ms=-1,
        )

    answer = wire.QuorumDescription(
        node_id=2,
        leader_node_id=2,
        term=7,
        commit_index=90,
        last_index=100,
        incarnation=1,
        members=[
            member(1, voter=True, match_index=90),
            member(2, voter=True, match_index=100),
            member(3, voter=False, match_index=0, silent_ms=-1),
        ],
        features=[wire.FeatureState(name="metadata.level", level=2, supported_min=1, supported_max=2)],
    )
    facts, members = describe_quorum(answer)
    assert (facts["leader"], facts["term"], facts["incarnation"]) == (2, 7, 1)
    assert facts["features"] == ["metadata.level=2 (supported: 1 to 2)"]
    assert [(row["node_id"], row["status"], row["lag"]) for row in members] == [
        (1, "follower", 10),
        (2, "leader", 0),
        (3, "learner", 100),
    ]
    assert [row["silent_ms"] for row in members] == [10, 10, None]
    assert members[0]["directory_id"] == "00000000-0000-0000-0000-000000000001"
    assert describe_quorum(wire.QuorumDescription())[0]["leader"] is None


def test_silence_of_voter_warns_about_a_voter_without_contact() -> None:
    def voter(number: int, silent_ms: int) -> wire.MemberState:
        return wire.MemberState(
            node_id=7 << 16 | number,
            directory_id=uuid.UUID(int=number).bytes,
            voter=True,
            silent_ms=silent_ms,
        )

    answer = wire.QuorumDescription(members=[voter(3000, 100), voter(3001, 9_000)])
    assert silence_of_voter(answer, 7 << 16 | 3000) == ""
    for named in (3001, 7 << 16 | 3001):
        said = silence_of_voter(answer, named)
        assert "has had no contact with it for 9.0 s (directory 00000000-0000-0000-0000-000000000bb9)" in said
        assert f"remove {7 << 16 | 3001} --directory 00000000-0000-0000-0000-000000000bb9" in said


def test_forced_recovery_needs_accept_loss(cluster: ClusterDirectory) -> None:
    before = cluster.quorum_file.read_bytes()
    said = refusal("force-recovery", "--controller", "1", "--data", str(cluster.root))
    assert "--accept-loss" in said
    assert cluster.quorum_file.read_bytes() == before


def test_forced_recovery_names_what_is_missing(tmp_path: Path, cluster: ClusterDirectory) -> None:
    with pytest.raises(CommandError, match=r"no quorum\.json"):
        force_local_recovery(ClusterDirectory(tmp_path / "elsewhere"), 0)
    with pytest.raises(CommandError, match=r"has no controller 7; it has 0, 1, 2"):
        force_local_recovery(cluster, 7)
    with cluster.lock(), pytest.raises(CommandError, match="in use by another `ponor up`"):
        force_local_recovery(cluster, 1)


def test_forced_recovery_without_a_log_changes_nothing(
    cluster: ClusterDirectory,
) -> None:
    data = cluster.process_data("controller-1")
    data.mkdir(parents=True)
    content = {
        "node_id": 68_537,
        "data": str(data),
        "listen": "127.0.0.1:1",
        "peer_listen": "127.0.0.1:2",
        "format": False,
    }
    write_json_atomically(cluster.config_file("controller-1"), content)
    with pytest.raises(CommandError, match="contains no data of a controller"):
        force_local_recovery(cluster, 1)
    assert len(QuorumFile.open(cluster, 3).controllers) == 3


def test_forced_recovery_of_a_copy_does_not_change_the_original(
    tmp_path: Path, cluster: ClusterDirectory
) -> None:
    """A configuration contains an absolute path. The refusal tells the operator to try on copies."""
    original = cluster.process_data("controller-1")
    original.mkdir(parents=True)
    content = {
        "node_id": 68_537,
        "data": str(original),
        "listen": "127.0.0.1:1",
        "peer_listen": "127.0.0.1:2",
    }
    write_json_atomically(cluster.config_file("controller-1"), content)
    copy = ClusterDirectory(tmp_path / "copy")
    shutil.copytree(cluster.root, copy.root, ignore=shutil.ignore_patterns("copy"))
    with pytest.raises(CommandError, match="copy/controller-1 contains no data of a controller"):
        force_local_recovery(copy, 1)


def test_forced_recovery_takes_the_configuration_of_another_supervisor(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "controller.json"
    data.mkdir()
    content = {"node_id": 3_000, "data": str(data), "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2"}
    write_json_atomically(file, content)
    with pytest.raises(CommandError, match=f"{data} contains no data of a controller"):
        force_one_recovery(file)
    said = refusal("force-recovery", "--config", str(file), "--controller", "1", "--accept-loss")
    assert "--controller N of a `ponor up`, or --config FILE" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add-learner", "5", "--directory", "mine", "--peer", "h:1", "--service", "h:2"], "not a UUID"),
        (["remove", "5", "--directory", "mine"], "not a UUID"),
        (["add-learner", "0", "--directory", "x", "--peer", "h:1", "--service", "h:2"], "NODE_ID"),
        (["promote", "one"], "NODE_ID"),
        (["describe"], "no cluster in"),
    ],
)
def test_quorum_commands_refuse_invalid_options_before_a_request(
    tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in refusal(*words, "--data", str(tmp_path))


def test_leave_quorum_refuses_the_last_controller(cluster: ClusterDirectory) -> None:
    quorum = QuorumFile.open(cluster, 3)
    running = ClusterFile("h:9092", ["h:1"], "file:///o", "file", None, [])
    changes = ControllerChanges(cluster, running, quorum)
    assert [changes.take_number(), changes.take_number()] == [3, 4]
    assert json.loads(cluster.quorum_file.read_text())["next_number"] == 5
    quorum.controllers = [ControllerPlace(0)]
    with pytest.raises(CommandError, match="only one and cannot be removed"):
        asyncio.run(changes.leave_quorum(0, 68_536, "h:1"))
    assert len(quorum.controllers) == 1
