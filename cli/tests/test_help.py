"""`ponor --help` and `--version`, for every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from ponor_cli import main as entry
from ponor_cli.lazy_commands import OWN

ROOT = typer.main.get_command(entry.app)


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of every command and group below this one."""
    yield words
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name))


def said(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("sys.argv", ["ponor", *words])
    monkeypatch.setenv("COLUMNS", "120")
    assert entry._exit_code() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", list(commands(ROOT, ())), ids=" ".join)
def test_every_command_has_help(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said((*words, "--help"), monkeypatch, capsys)
    assert f"Usage: {' '.join(['ponor', *words])} " in text
    assert "<bool>" not in text, "a flag takes no value"
    assert ("--install-completion" in text) == (words == ()), "only the root group installs completion"
    assert said((*words, "-h"), monkeypatch, capsys) == text


def test_commands_of_this_member_come_first() -> None:
    assert ROOT.list_commands(typer.Context(ROOT))[: len(OWN)] == list(OWN)  # type: ignore[attr-defined]


def test_version_is_the_version_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, number = said(("--version",), monkeypatch, capsys).strip().partition(" ")
    assert name == "ponor"
    assert number.count(".") == 2
