"""Which thread reads gRPC's sockets: chosen before gRPC is there, and by the operator first."""

import os
import subprocess
import sys

from ponor_rpc.grpc_polling import ONE_POLLER, VARIABLE, prefer_one_poller


def test_the_choice_is_made_unless_somebody_made_one() -> None:
    environment: dict[str, str] = {}
    prefer_one_poller(environment)
    assert environment == {VARIABLE: ONE_POLLER}
    chosen = {VARIABLE: ""}
    prefer_one_poller(chosen)
    assert chosen == {VARIABLE: ""}


def test_it_is_made_before_grpc_is_imported_and_grpc_knows_the_names() -> None:
    program = (
        "import sys, os, ponor_rpc; assert 'grpc' not in sys.modules; print(os.environ['GRPC_EXPERIMENTS']);"
        "import asyncio, ponor_rpc.grpc_network as n; asyncio.run(n.GrpcNetwork().connect('127.0.0.1:1', '/a/B'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.stdout.strip() == ONE_POLLER
    assert "Unknown experiment" not in done.stderr
