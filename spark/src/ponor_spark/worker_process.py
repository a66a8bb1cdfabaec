"""Reduce the time and memory that Spark's Python workers use between tasks.

Called only in workers, never in a user's process.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import zipimport
from functools import cache
from typing import Final

_M_ARENA_MAX: Final = -8
"""From glibc's malloc.h."""


def forget_jars() -> None:
    """Remove jars without a Python module from the module path. Call it before large imports; idempotent.

    Spark puts its own core jar before the installed packages (PythonUtils.sparkPythonPath). Python stores the
    names of its 5,854 entries, reads them again when a worker starts, and again when a package queries its
    own version (crc32c does): 15 MiB and 0.05 s of CPU in every worker. Archives with a module are kept.
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
    """Prepare a worker for this source. Call it after all imports; it takes effect once per process."""
    freeze_imports()
    give_memory_back()


def freeze_imports() -> None:
    """Exclude a worker's imported modules from garbage collection; once per process.

    Spark's workers run `gc.collect()` after every task (pyspark/daemon.py). A worker of this source has about
    fifty thousand module objects that never become garbage. Scanning them takes 30 ms of CPU before the next
    task, half of the time to decode 64 MiB. Frozen objects are still freed by reference counting; only their
    cycles are not found. If other code has already called gc.freeze(), this function does nothing.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()


@cache
def give_memory_back() -> bool:
    """Make malloc reuse freed memory across threads and return free memory to the system; return whether the
    C library supports it (glibc does).

    By default glibc has an arena for each fetching thread, and every arena keeps memory for its largest
    reads: after four tasks a worker holds 40 MiB of unused memory until Spark ends it. One arena is enough
    for threads that wait for a network (docs/design/spark.md#memory).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    is_told = bool(library.mallopt(_M_ARENA_MAX, 1))
    library.malloc_trim(0)
    return is_told
