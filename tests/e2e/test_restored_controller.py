"""A controller's directory is replaced by an older copy, then lost: the cluster refuses both with a remedy,
and continues from the newest directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.ports import free_port

PATIENCE_S = 240
"""Only a hang takes longer."""


class Up:
    """`ponor up` on one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        ready = self.root.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        words = ["up", "--data", str(self.root), "--kafka-port", str(self.port), "--ready-file", str(ready)]
        self.process = subprocess.Popen(_command(*words), stdout=subprocess.DEVNULL, text=True)
        self._until(ready.exists)

    def start_in_vain(self, expected: str) -> None:
        """Start and expect that a process reports this error."""
        words = ["up", "--data", str(self.root), "--kafka-port", str(self.port)]
        self.process = subprocess.Popen(
            _command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        logs = self.root / "logs"
        self._until(lambda: any(expected in path.read_text() for path in logs.glob("*.log")))
        self.stop()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def say(self, *words: str, given: str = "") -> str:
        words = (*words, "--bootstrap", f"127.0.0.1:{self.port}")
        return subprocess.run(
            _command(*words), input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        ).stdout

    def produce(self, count: int) -> None:
        self.say("topic", "produce", "t", given="".join(f"record {n}\n" for n in range(count)))

    def consumed(self) -> int:
        return len(self.say("topic", "consume", "t", "--from-beginning", "--no-follow").splitlines())


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from ponor_cli.main import main; main()", *words]


def test_older_copy_and_empty_directory_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    up = Up(root)
    up.start()
    try:
        up.say("topic", "create", "t", "--partitions", "1")
        up.produce(10)
        shutil.copytree(root / "controller-0", tmp_path / "older")
        up.produce(1_000)
        up.stop()
        (root / "controller-0").rename(tmp_path / "newest")
        shutil.copytree(tmp_path / "older", root / "controller-0")
        up.start_in_vain("this controller's log is an older copy")
        shutil.rmtree(root / "controller-0")
        refused = subprocess.run(
            _command("up", "--data", str(root), "--kafka-port", str(up.port)),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert refused.returncode != 0
        assert "held cluster" in refused.stdout + refused.stderr
        (tmp_path / "newest").rename(root / "controller-0")
        up.start()
        assert up.consumed() == 1_010
    finally:
        up.stop()
