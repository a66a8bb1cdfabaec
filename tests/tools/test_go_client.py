"""franz-go, a Go client without code in common with the others: every codec, a group of two, and
transactions.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.peers.artifacts import PeerMissingError, program

PROGRAM = Path(__file__).parent / "go"
CODECS = 5
RECORDS = 200
BUILD_S_MAX = 1_200


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; skipped without Go or without its modules."""
    target = tmp_path_factory.mktemp("go") / "client"
    try:
        go = program("go", "Go")
    except PeerMissingError as error:
        pytest.skip(str(error))
    environment = os.environ | {"GOFLAGS": "-mod=readonly -p=1", "GOTOOLCHAIN": "local"}
    fetched = subprocess.run(
        [go, "mod", "download"],
        cwd=PROGRAM,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    if fetched.returncode != 0:
        pytest.skip(f"the Go modules of tests/tools/go cannot be had: {fetched.stderr.strip()[-300:]}")
    subprocess.run(
        [go, "build", "-o", str(target), "."], cwd=PROGRAM, env=environment, check=True, timeout=BUILD_S_MAX
    )
    return target


def test_a_go_client_writes_with_every_codec_and_reads_in_a_group(built: Path, ponor: str) -> None:
    command = [str(built), ponor, "go-topic", str(RECORDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    written = CODECS * RECORDS
    assert (told["Written"], told["Read"], told["Keyless"]) == (written, written, written // 2)
    assert told["Committed"] == written
    assert (told["Protocol"], told["Shares"]) == ("cooperative-sticky", [2, 2])
    assert told["Ended"] == 3
