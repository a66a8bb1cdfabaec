# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Inner loops of the image's tables: index entries of loaded and committed objects, and containers without garbage
collection.
"""

from array import array as new_array

from cpython cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

cdef enum:
    HOLDING_BYTES = 24
    START_AT = 8

cdef array.array UINT32 = new_array("I")


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *container)


def untrack(container):
    """Exclude a container from garbage collection; its reference count still frees it.

    A collection of the second generation visits every item of every list that was created since the process
    began to serve: 70 to 130 ms for a million keys, in one step of the event loop
    (docs/design/time-and-turns.md#garbage-collection). Lists of a table's keys and rows contain numbers,
    strings, bytes and tuples of these, so they are in no reference cycle.
    """
    PyObject_GC_UnTrack(<void *>container)


cdef int64_t start_of(list firsts, list blocks, int64_t key) except? -1:
    """The start offset of a row, which must exist."""
    cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(firsts), middle, b
    cdef array.array keys
    cdef bytearray data
    cdef int64_t start
    while low < high:
        middle = (low + high) >> 1
        if key < <int64_t><object>PyList_GET_ITEM(firsts, middle):
            high = middle
        else:
            low = middle + 1
    b = low - 1
    assert b >= 0, f"the index of streams lists object {key}, which does not exist"
    block = blocks[b]
    keys, data = block.keys, block._data
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys.data.as_longlongs[middle] < key:
            low = middle + 1
        else:
            high = middle
    assert low < len(keys) and keys.data.as_longlongs[low] == key, f"the index of streams lists object {key}, which does not exist"
    memcpy(&start, PyByteArray_AS_STRING(data) + low * HOLDING_BYTES + START_AT, 8)
    return start


def note_all(dict of_stream, rows, list keys, list values):
    """Add loaded rows of (stream, start, end) to the lists of object ids by stream.

    Returns the positions of rows that were not added: their start is not above that of the last object.
    """
    assert rows._layout.format == "<qqq", "compiled for another layout of stream objects"
    cdef list firsts = rows._firsts, blocks = rows._blocks, left = []
    cdef Py_ssize_t n
    cdef PyObject *found
    cdef array.array ids
    cdef int64_t last
    cdef tuple row
    for n in range(len(keys)):
        row = values[n]
        stream_id = row[0]
        found = PyDict_GetItem(of_stream, stream_id)
        if found is NULL:
            of_stream[stream_id] = new_array("q", (keys[n],))
            continue
        ids = <array.array>found
        last = ids.data.as_longlongs[len(ids) - 1]
        if start_of(firsts, blocks, last) < <int64_t>row[1]:
            ids.append(keys[n])
        else:
            left.append(n)
    return left


def append_slot(dict with_stream, array.array stream_ids, unsigned int slot, array.array orders, int64_t order):
    """Append a slot to the lists of these streams.

    Returns the streams whose last slot has an order of `order` or above; their lists are unchanged.
    """
    cdef Py_ssize_t i
    cdef int64_t stream_id, previous = -1
    cdef PyObject *found
    cdef array.array slots
    cdef list left = []
    for i in range(len(stream_ids)):
        stream_id = stream_ids.data.as_longlongs[i]
        if stream_id == previous:
            continue
        previous = stream_id
        found = PyDict_GetItem(with_stream, stream_id)
        if found is NULL:
            slots = array.clone(UINT32, 1, False)
            slots.data.as_uints[0] = slot
            with_stream[stream_id] = slots
            continue
        slots = <array.array>found
        if orders.data.as_longlongs[slots.data.as_uints[len(slots) - 1]] >= order:
            left.append(stream_id)
            continue
        slots.append(slot)  # grows by a sixteenth; Cython's own resize_smart would by a half
    return left
