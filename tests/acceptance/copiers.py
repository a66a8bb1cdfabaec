"""Processes of `copier.py` and `Copier.java`: start, kill, restart, and their reports."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.acceptance.copier import ON_PURPOSE, CopyWork
from tests.tools.java_programs import java_program_command

FAMILIES: Final = {"librdkafka": "", "aiokafka": "", "java": "4.3.1", "java-classic": "2.8.2"}
"""Name of a copier, and its version if it is a Java client."""
COMMIT_S_MAX: Final = 600.0
STOP_S_MAX: Final = 300.0
POLL_INTERVAL_S: Final = 0.05
FAILURES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a report."""

    what: str
    at_ns: int
    transaction: str
    records: int
    reason: str

    @classmethod
    def of(cls, line: str) -> Step:
        """Decode a line."""
        what, at_ns, transaction, records, reason = line.rstrip("\n").split(" ", 4)
        return cls(what, int(at_ns), transaction, int(records), reason)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a report. `outcome` is commit, abort, or empty if the process ended before."""

    name: str
    opened_ns: int
    ended_ns: int
    """When the process started to commit; 0: it did not."""
    closed_ns: int
    """When commit or abort returned; 0: it did not."""
    records: int
    outcome: str
    reason: str


class Copier:
    """The processes of one name, one at a time."""

    def __init__(self, bootstrap: str, name: str, directory: Path, timeout_ms: int) -> None:
        self.name = name
        self.kills_ns: list[int] = []
        self.failures = 0
        stop_file, report_file = directory / f"{name}.stop", directory / f"{name}.report"
        self._work = CopyWork(bootstrap, name, 0, timeout_ms, stop_file, report_file)
        self._output = directory / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._read_bytes = 0
        self._steps: list[Step] = []

    @property
    def identity(self) -> str:
        """Name of group, static member and transactional id."""
        return self._work.identity

    @property
    def source(self) -> str:
        """Topic that is read."""
        return self._work.source

    @property
    def target(self) -> str:
        """Topic that is written."""
        return self._work.target

    def start(self) -> None:
        """Start the next process."""
        self._work = replace(self._work, incarnation=self._work.incarnation + 1)
        version, words = FAMILIES[self.name], self._work.words()
        if version:
            command = java_program_command("Copier", version, *words)
        else:
            command = [sys.executable, "-m", "tests.acceptance.copier", self.name, *words]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self._process is not None:
            self.kills_ns.append(time.monotonic_ns())
            self._process.kill()
            self._process.wait()
            self._process = None

    def start_if_ended(self) -> None:
        """Start a successor of a process that ended by itself; its report has the reason."""
        if self._process is not None and self._process.poll() is not None:
            self.failures += 1
            assert self.failures < FAILURES_MAX, f"{self.name}: {self.steps()[-1]}"
            self.start()

    def stop(self) -> None:
        """Let the process end between transactions."""
        assert self._process is not None
        self._work.stop_file.touch()
        assert self._process.wait(STOP_S_MAX) == 0, f"{self.name} ended with an error: {self._output}"
        self._process = None

    def steps(self) -> list[Step]:
        """Read the report as far as it is written."""
        if self._work.report_file.exists():
            with self._work.report_file.open("rb") as file:
                file.seek(self._read_bytes)
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self._steps += [Step.of(line) for line in whole.decode().splitlines()]
        return self._steps

    def has_committed(self, after_ns: int) -> bool:
        """Whether a transaction was committed that began after a moment."""
        opened = ""
        for step in self.steps():
            if step.what == "open" and step.at_ns > after_ns:
                opened = step.transaction
            elif step.what == "commit" and step.transaction == opened:
                return True
        return False

    def transactions(self) -> list[Transaction]:
        """All transactions, in order."""
        found: dict[str, Transaction] = {}
        for step in self.steps():
            if step.what == "open":
                found[step.transaction] = Transaction(step.transaction, step.at_ns, 0, 0, 0, "", "")
            elif step.what == "end":
                found[step.transaction] = replace(
                    found[step.transaction], ended_ns=step.at_ns, records=step.records
                )
            elif step.what in {"commit", "abort"}:
                found[step.transaction] = replace(
                    found[step.transaction], closed_ns=step.at_ns, outcome=step.what, reason=step.reason
                )
        return list(found.values())

    def mishaps(self, from_ns: int, until_ns: int) -> Counter[str]:
        """Count the reasons of aborts and of fatal errors, except aborts on purpose."""
        return Counter(
            f"{step.what}: {step.reason}"
            for step in self.steps()
            if step.what in {"abort", "fatal"}
            and step.reason != ON_PURPOSE
            and from_ns < step.at_ns < until_ns
        )


@contextmanager
def copiers(bootstrap: str, directory: Path, names: Sequence[str], timeout_ms: int) -> Iterator[list[Copier]]:
    """Run a copier for each name."""
    directory.mkdir(parents=True)
    running = [Copier(bootstrap, name, directory, timeout_ms) for name in names]
    try:
        for each in running:
            each.start()
        yield running
    finally:
        for each in running:
            each.kill()


def wait_until_all_commit(running: Iterable[Copier], after_ns: int) -> None:
    """Wait until each copier has committed a transaction that began after a moment."""
    deadline = time.monotonic() + COMMIT_S_MAX
    for each in running:
        while not each.has_committed(after_ns):
            each.start_if_ended()
            assert time.monotonic() < deadline, f"{each.name} commits nothing; {each.steps()[-5:]}"
            time.sleep(POLL_INTERVAL_S)
