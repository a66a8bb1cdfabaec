# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""How loaded stream objects enter the index of streams, by compiled code. Same results as the twin `holdings_python`.

What lives here: the loop over the rows of a snapshot's section. Works on the lists and arrays of `blocks`.
"""

from array import array as new_array

from cpython cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from ponor_metadata.stream_object_layout import HOLDING

cdef enum:
    HOLDING_BYTES = 24
    START_AT = 8

assert HOLDING.format == "<qqq", "compiled for another layout: install this member again"


cdef int64_t start_of(list firsts, list blocks, int64_t key) except? -1:
    """The start offset of a row that is there."""
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
    assert b >= 0, f"the index of streams names object {key}, which is not there"
    block = blocks[b]
    keys, data = block.keys, block._data
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys.data.as_longlongs[middle] < key:
            low = middle + 1
        else:
            high = middle
    assert low < len(keys) and keys.data.as_longlongs[low] == key, f"the index of streams names object {key}, which is not there"
    memcpy(&start, PyByteArray_AS_STRING(data) + low * HOLDING_BYTES + START_AT, 8)
    return start


def note_all(dict of_stream, rows, list keys, list values):
    """Enter rows that were just loaded. Returns the places of those that do not begin behind the last object of their stream, which are left out."""
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
