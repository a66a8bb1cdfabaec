"""What holds for every test of the project."""

import gc

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is; tests assert nothing about time.
settings.register_profile("ponor", deadline=None)
settings.load_profile("ponor")


@pytest.fixture(autouse=True, scope="module")
def _only_own_garbage() -> None:
    """Collect what other modules left behind: a finalizer that prints a traceback parses source, and that must not happen inside a parse.

    CPython 3.11 then raises SystemError, "AST constructor recursion depth mismatch", in whoever parses (hypothesis does).
    """
    gc.collect()
