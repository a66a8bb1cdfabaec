# cython: language_level=3
"""Takes containers out of the garbage collector's sight. See `untracking`, which says for which that is right."""

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *container)


def untrack(container):
    """Let the collector of cycles forget the container; whatever frees or changes it goes on as ever."""
    PyObject_GC_UnTrack(<void *>container)
