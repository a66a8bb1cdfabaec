"""Errors of commands are one line on standard error with the remedy; the exit code tells the kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ponor_cli import main as entry
from ponor_cli.commands.doctor import likely_cause
from s3stream.stores.s3_location import parse_s3_location

PONOR = str(Path(sys.executable).with_name("ponor"))


def refusal(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, code: int = 1
) -> str:
    """The one line that the command ends with."""
    monkeypatch.setattr("sys.argv", ["ponor", *words])
    assert entry._exit_code() == code
    printed = capsys.readouterr()
    assert not printed.out.strip()
    (line,) = printed.err.splitlines()
    assert line.startswith("ponor: ")
    return line


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], "no broker answers at 127.0.0.1:1"),
        (["topic", "list", "--bootstrap", "127.0.0.1"], "write HOST:PORT"),
        (["topic", "list", "--bootstrap", "127.0.0.1:99999"], "write HOST:PORT"),
        (["topic", "list", "--data", "d", "--bootstrap", "127.0.0.1:1"], "give one of them"),
        (["topic", "list", "--data", "/nowhere"], "`ponor up --data /nowhere`"),
        (["node", "list", "--data", "/nowhere"], "no cluster in /nowhere"),
        (["node", "stop", "gc", "0", "--data", "/nowhere"], "no `ponor up` answers for /nowhere"),
        (["up", "--object-store", "ftp://x", "--data", "{tmp}/d"], "write file://DIR or s3://"),
        (["up", "--set", "zzz=1"], "`docs/operations/settings.md`"),
        (["doctor", "storage", "nonsense"], "write file:///DIR or s3://"),
        (["doctor", "storage", "file://"], "write file:///DIR or s3://"),
        (["cluster", "quorum", "force-recovery", "--controller", "0"], "--accept-loss"),
    ],
)
def test_errors_are_one_line_with_the_remedy(
    words: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refusal([word.replace("{tmp}", str(tmp_path)) for word in words], monkeypatch, capsys)
    assert what in line
    assert len(line) < 300


def test_likely_cause_names_missing_credentials() -> None:
    url = "s3://b/p?endpoint=http://127.0.0.1:1"
    assert "no AWS_ACCESS_KEY_ID in the environment" in likely_cause(parse_s3_location(url, {}))
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert likely_cause(parse_s3_location(url, keys)) == likely_cause(None) == ""


def test_system_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").mkdir()
    line = refusal(["topic", "list", "--data", str(tmp_path)], monkeypatch, capsys)
    assert f"{tmp_path / 'cluster.json'}: Is a directory" in line


def test_an_invalid_command_line_exits_with_2() -> None:
    run = subprocess.run([PONOR, "topic", "show"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


def test_a_closed_pipe_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    """`ponor node list | head -0`."""
    entries = [{"role": "gc", "id": number, "node_id": number} for number in range(2_000)]
    cluster = {
        "bootstrap": "127.0.0.1:1",
        "controllers": [],
        "object_store": "file:///o",
        "wal": "file",
        "supervisor_pid": None,
        "processes": entries,
    }
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [PONOR, "node", "list", "--data", str(tmp_path)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("topic produce t <&-", "standard input is closed"),
        ("topic consume t >&-", "standard output is closed"),
        ("topic produce t -K '\\xq' </dev/null", "escapes of single bytes"),
    ],
)
def test_records_need_descriptors_and_whole_escapes(words: str, what: str) -> None:
    done = subprocess.run(["sh", "-c", f"exec {PONOR} {words}"], capture_output=True)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ponor: ")
    assert what in line
