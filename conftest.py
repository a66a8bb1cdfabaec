"""Fixtures and hooks for every test of the project."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the duration of an example depends on the machine's load. The examples are the same in
# every run, so results can be reproduced; `make explore` draws others.
settings.register_profile(
    "ponor",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="PONOR_EXPLORE" not in os.environ,
)
settings.load_profile("ponor")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control ignores SIGINT in background processes, and every process of a test
    # would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection during collection of tests, which creates no garbage.

    It would take a quarter of the CPU time of this phase in each worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude all imported and collected objects from later garbage collections.

    They are a third of a million objects, which take a quarter of a second per collection, and every
    module causes one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _only_own_garbage() -> None:
    """Collect the garbage of other modules before a module starts.

    A finalizer may print a traceback, which parses source. Within another parse (by hypothesis),
    CPython 3.11 then raises SystemError, "AST constructor recursion depth mismatch".
    """
    gc.collect()
