"""What holds for every test of the project."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or is drawn, says how busy the machine is; tests assert nothing about time. The examples are the same in every run: what a change passed here it passes
# elsewhere. `make explore` draws others.
settings.register_profile(
    "ponor",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="PONOR_EXPLORE" not in os.environ,
)
settings.load_profile("ponor")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it puts into the background so, and every process of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is imported and collected is garbage: looking for it meanwhile is a quarter of the processor time that this takes each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What has been imported and collected stays to the end: no collection of garbage needs to look at it again.

    It is a third of a million objects, a quarter of a second for each collection, and every module makes one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _only_own_garbage() -> None:
    """Collect what other modules left behind: a finalizer that prints a traceback parses source, and that must not happen inside a parse.

    CPython 3.11 then raises SystemError, "AST constructor recursion depth mismatch", in the caller of the parser (hypothesis).
    """
    gc.collect()
