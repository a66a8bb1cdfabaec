"""Service processes in the operating system: signals, exit of the parent, fail-stop, exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ponor_runtime.lifecycle import EXIT_FAIL_STOP, EXIT_REFUSED, PARENT_FD_VARIABLE
from ponor_runtime.log_lines import LINES_MAX

PROGRAM = Path(__file__).with_name("service_program.py")
LOST = re.compile(r"(\d+) log lines dropped: the log file is too slow")


class Service:
    """A started process."""

    def __init__(self, wish: str) -> None:
        read_end, self.life_line = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), wish],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[read_end],
            env={**os.environ, PARENT_FD_VARIABLE: str(read_end)},
        )
        os.close(read_end)

    def serving(self) -> Service:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "serving\n"
        return self

    def ended(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=300)
        return self.process.returncode, out, errors

    def drop(self) -> None:
        os.close(self.life_line)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    service = Service(request.param)
    yield service
    service.drop()


@pytest.mark.parametrize("service", ["serve"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_service_cleanly(service: Service, number: signal.Signals) -> None:
    service.serving().process.send_signal(number)
    assert service.ended() == (0, "closed\n", "")


@pytest.mark.parametrize("service", ["serve"], indirect=True)
def test_service_stops_when_its_parent_exits(service: Service) -> None:
    service.serving()
    os.close(service.life_line)
    service.life_line = os.open(os.devnull, os.O_RDONLY)
    code, out, errors = service.ended()
    assert (code, out) == (0, "closed\n")
    assert "parent process exited" in errors


@pytest.mark.parametrize("service", ["hang", "long"], indirect=True)
def test_deadline_without_a_parent_is_not_postponable(service: Service) -> None:
    service.serving()
    os.close(service.life_line)
    service.life_line = os.open(os.devnull, os.O_RDONLY)
    code, out, errors = service.ended()
    assert (code, out) == (EXIT_REFUSED, "")
    assert "tiny: shutdown not complete 1 s after the stop request" in errors


@pytest.mark.parametrize("service", ["long"], indirect=True)
def test_exit_of_the_parent_shortens_a_running_stop(service: Service) -> None:
    service.serving().process.terminate()
    os.close(service.life_line)
    service.life_line = os.open(os.devnull, os.O_RDONLY)
    code, out, _ = service.ended()
    assert (code, out) == (EXIT_REFUSED, "")


@pytest.mark.parametrize("service", ["hang"], indirect=True)
def test_service_that_does_not_close_is_ended(service: Service) -> None:
    service.serving().process.terminate()
    code, out, errors = service.ended()
    assert (code, out) == (EXIT_REFUSED, "")
    assert "tiny: shutdown not complete 4 s after the stop request" in errors


@pytest.mark.parametrize("service", ["long"], indirect=True)
def test_stop_deadline_is_postponable(service: Service) -> None:
    service.serving().process.terminate()
    assert service.ended() == (0, "closed\n", "")


@pytest.mark.parametrize("service", ["refuse"], indirect=True)
def test_remediable_error_is_one_line(service: Service) -> None:
    assert service.ended() == (EXIT_REFUSED, "", "tiny: the directory x is in use: stop the other process\n")


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ("bug", "tiny: stopped by an unexpected KeyError: 'bug'"),
        ("task", "tiny: FAIL-STOP: journal writer: OSError: the disk is gone"),
        ("callback", "ZeroDivisionError"),
    ],
    indirect=["service"],
)
def test_unexpected_error_is_a_fail_stop(service: Service, told: str) -> None:
    code, out, errors = service.ended()
    assert code == EXIT_FAIL_STOP
    assert "closed" not in out
    assert told in errors.splitlines()[-1]
    assert "Traceback" in errors


@pytest.mark.parametrize("service", ["talk"], indirect=True)
def test_blocked_log_reader_does_not_block_the_service(service: Service) -> None:
    process = service.serving().process
    assert process.stdout is not None
    assert process.stdout.readline() == "said\n", "logging must not block"
    # A third of the lines is with the writer, which blocks on the pipe, a third in its queue. Which lines are
    # dropped depends on scheduling; every line is written or counted.
    assert process.stderr is not None
    written: list[int] = []
    lost = 0
    while len(written) + lost < 3 * LINES_MAX:
        line = process.stderr.readline().rstrip("\n")
        if gap := LOST.fullmatch(line):
            lost += int(gap[1])
        else:
            written.append(int(line.rpartition(" ")[2]))
    assert lost > 0
    assert written == sorted(set(written)), "in order, none twice"
    process.send_signal(signal.SIGTERM)
    assert service.ended() == (0, "closed\n", "")
