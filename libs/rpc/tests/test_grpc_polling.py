"""The polling choice is set before gRPC is imported, and the operator's choice takes precedence."""

import os
import subprocess
import sys

from ponor_rpc.grpc_polling import ONE_POLLER, VARIABLE, prefer_one_poller


def test_default_applies_only_without_an_operators_choice() -> None:
    environment: dict[str, str] = {}
    prefer_one_poller(environment)
    assert environment == {VARIABLE: ONE_POLLER}
    chosen = {VARIABLE: ""}
    prefer_one_poller(chosen)
    assert chosen == {VARIABLE: ""}


def test_choice_precedes_the_import_of_grpc_and_grpc_accepts_it() -> None:
    program = (
        "import sys, os, ponor_rpc; assert 'grpc' not in sys.modules; print(os.environ['GRPC_EXPERIMENTS']);"
        "import asyncio, ponor_rpc.grpc_network as n; asyncio.run(n.GrpcNetwork().connect('127.0.0.1:1',"
        " '/a/B'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.stdout.strip() == ONE_POLLER
    assert "Unknown experiment" not in done.stderr
