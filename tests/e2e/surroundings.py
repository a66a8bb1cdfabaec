"""Real resources of a broker with fault injection: a small disk, a slow or unavailable store, an adjustable
clock.

`disasters` defines the expected behaviour.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.integration.seaweed_server import SeaweedServer

FAKETIME_LIBRARIES: Final = (
    os.environ.get("PONOR_FAKETIME", ""),
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)
STORE_TURN_S: Final = 0.5
STORE_SHARE: Final = 0.1
BALLAST_STEP_BYTES: Final = 4096


class SmallDisk:
    """A small file system."""

    def __init__(self, directory: Path) -> None:
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        """Fill the remaining space with a file."""
        with (
            pytest.raises(OSError, match="No space left"),
            self._ballast.open("wb", buffering=0) as ballast,
        ):
            while True:
                ballast.write(bytes(BALLAST_STEP_BYTES))

    def give_back(self) -> None:
        """Free that space."""
        self._ballast.unlink()


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small file system at the directory; skip the test if that is not permitted."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here ({done.stderr.strip()})")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def silenced(server: SeaweedServer) -> Iterator[None]:
    """Suspend the store, so that it swallows every request."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def killed(server: SeaweedServer) -> Iterator[None]:
    """Kill the store and restart it with its data on disk."""
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def ten_times_slower(server: SeaweedServer) -> Iterator[None]:
    """Let the store run a tenth of the time."""
    healed = threading.Event()

    def stutter() -> None:
        while not healed.is_set():
            server.pause()
            healed.wait(STORE_TURN_S * (1 - STORE_SHARE))
            server.resume()
            healed.wait(STORE_TURN_S * STORE_SHARE)

    stutterer = threading.Thread(target=stutter)
    stutterer.start()
    try:
        yield
    finally:
        healed.set()
        stutterer.join()


class WallClock:
    """Wall clock of every process started with `environment`; monotonic clocks are unaffected."""

    def __init__(self, file: Path) -> None:
        self._file = file
        library = next((path for path in FAKETIME_LIBRARIES if path and Path(path).exists()), None)
        if library is None:
            pytest.skip("libfaketime is not installed; the simulation sets clocks in any case")
        self.set_off_by(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def set_off_by(self, seconds: int) -> None:
        """Set the offset of the wall clock."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+d}\n")
        beside.replace(self._file)
