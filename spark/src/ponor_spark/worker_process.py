"""What Spark's Python workers keep between two tasks, of time and of memory, and how little of it is ours to take away. Called in workers alone, never in a user's process."""

from __future__ import annotations

import ctypes
import gc
import sys
import zipimport
from functools import cache
from typing import Final

_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""


def forget_jars() -> None:
    """Take jars without a Python module off the path of modules. To be called before anything large is imported, and again at will.

    Spark puts its own core jar there, before the installed packages (PythonUtils.sparkPythonPath). Python keeps the names of its 5,854 entries, reads them again at a worker's start, and once
    more where a package asks for its own version (crc32c does): 15 MiB and 0.05 s of processor time in every worker. An archive with a module in it stays.
    """
    directories = getattr(zipimport, "_zip_directory_cache", {})
    for jar in [path for path in sys.path if path.endswith(".jar") and path in directories]:
        if any(name.endswith((".py", ".pyc")) for name in directories[jar]):
            continue
        sys.path.remove(jar)
        for looked_up in (directories, sys.path_importer_cache):
            for path in [path for path in looked_up if path.startswith(jar)]:
                del looked_up[path]


def settle() -> None:
    """Make a worker, with all its imports, one of this source, once in its life."""
    freeze_imports()
    give_memory_back()


def freeze_imports() -> None:
    """Take what a worker has imported out of garbage collection, once in its life.

    Spark's workers run `gc.collect()` after every task (pyspark/daemon.py), and a worker of this source has some fifty thousand objects of modules that never become garbage: 30 ms of
    processor time, half of what decoding 64 MiB takes, before the next task may begin. Frozen objects are freed as ever when nobody refers to them; only cycles among them are not found.
    A worker that was frozen by somebody else is left as it is.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()


@cache
def give_memory_back() -> bool:
    """Have freed memory used again by whichever thread wants some, or go back to the system, and give back what is free now; whether the C library can be told so (glibc can).

    Left to itself, glibc has an arena for each thread that fetches, and every arena keeps room for the largest reads that it saw: after four tasks a worker holds 40 MiB of which nothing is used,
    until Spark ends it. One arena is enough for threads that wait for a network (docs/design/spark.md#memory).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    is_told = bool(library.mallopt(_M_ARENA_MAX, 1))
    library.malloc_trim(0)
    return is_told
