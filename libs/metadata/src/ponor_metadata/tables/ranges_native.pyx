# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Packs, unpacks and joins ranges, with the results of the interpreted code in `ranges`. Invalid input yields None."""

from array import array as new_array

from cpython cimport array
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

cdef array.array INT64 = new_array("q")
cdef uint64_t INT64_MAX = (<uint64_t>1 << 63) - 1


cdef inline int varint(const uint8_t **position, const uint8_t *end, uint64_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while position[0] < end and shift <= 56:
        byte = position[0][0]
        position[0] += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = value
            return byte != 0 or shift == 0
        shift += 7
    return 0


def decode_columns(bytes data):
    """Stream ids, starts and ends; None if the bytes break the layout."""
    cdef const uint8_t *position = data
    cdef const uint8_t *end = position + len(data)
    cdef Py_ssize_t room = len(data) // 3, count = 0
    cdef array.array ids = array.clone(INT64, room, False)
    cdef array.array starts = array.clone(INT64, room, False)
    cdef array.array ends = array.clone(INT64, room, False)
    cdef uint64_t stream_id = 0, last = 0, stream_delta, start_delta, offsets, start
    while position < end:
        if not (
            varint(&position, end, &stream_delta)
            and varint(&position, end, &start_delta)
            and varint(&position, end, &offsets)
        ):
            return None
        # All three are below 2^63, so that no sum of two wraps around.
        start = start_delta if stream_delta else last + start_delta
        stream_id += stream_delta
        if offsets == 0 or stream_id > INT64_MAX or start > INT64_MAX or start + offsets > INT64_MAX:
            return None
        last = start + offsets
        ids.data.as_longlongs[count] = <int64_t>stream_id
        starts.data.as_longlongs[count] = <int64_t>start
        ends.data.as_longlongs[count] = <int64_t>last
        count += 1
    array.resize(ids, count)
    array.resize(starts, count)
    array.resize(ends, count)
    return ids, starts, ends


cdef inline uint8_t *put_varint(uint8_t *position, uint64_t value) noexcept nogil:
    while value > 0x7F:
        position[0] = <uint8_t>(value & 0x7F | 0x80)
        position += 1
        value >>= 7
    position[0] = <uint8_t>value
    return position + 1


def encode_list(list runs):
    """Packed runs; None if they cannot be packed."""
    cdef Py_ssize_t count = len(runs), i
    cdef int64_t stream_id, start, end, start_delta, previous_id = 0, previous_end = 0
    cdef uint8_t *packed
    cdef uint8_t *position
    packed = position = <uint8_t *>malloc(count * 27 + 1)  # three numbers of at most nine bytes
    if packed is NULL:
        raise MemoryError
    try:
        for run in runs:
            stream_id, start, end = run
            start_delta = start - previous_end if stream_id == previous_id else start
            if start < 0 or end <= start or stream_id < previous_id or start_delta < 0:
                return None
            position = put_varint(position, <uint64_t>(stream_id - previous_id))
            position = put_varint(position, <uint64_t>start_delta)
            position = put_varint(position, <uint64_t>(end - start))
            previous_id, previous_end = stream_id, end
        return (<char *>packed)[: position - packed]
    except OverflowError:
        return None
    finally:
        free(packed)


cdef struct Run:
    int64_t stream_id
    int64_t start
    int64_t end


cdef int in_order(const void *left, const void *right) noexcept nogil:
    cdef const Run *a = <const Run *>left
    cdef const Run *b = <const Run *>right
    if a.stream_id != b.stream_id:
        return -1 if a.stream_id < b.stream_id else 1
    if a.start != b.start:
        return -1 if a.start < b.start else 1
    return (a.end > b.end) - (a.end < b.end)


def join_columns(list parts):
    """Sorted runs of all parts, adjacent ones joined; None if two overlap."""
    cdef array.array ids, starts, ends
    cdef Py_ssize_t count = 0, at = 0, kept = 0, i
    cdef Run *runs
    for ids, _, _ in parts:
        count += len(ids)
    if count == 0:
        return []
    runs = <Run *>malloc(count * sizeof(Run))
    if runs is NULL:
        raise MemoryError
    try:
        for ids, starts, ends in parts:
            for i in range(len(ids)):
                runs[at].stream_id = ids.data.as_longlongs[i]
                runs[at].start = starts.data.as_longlongs[i]
                runs[at].end = ends.data.as_longlongs[i]
                at += 1
        qsort(runs, count, sizeof(Run), in_order)
        for i in range(1, count):
            if runs[i].stream_id != runs[kept].stream_id or runs[i].start > runs[kept].end:
                kept += 1
                runs[kept] = runs[i]
            elif runs[i].start == runs[kept].end:
                runs[kept].end = runs[i].end
            else:
                return None
        return [(runs[i].stream_id, runs[i].start, runs[i].end) for i in range(kept + 1)]
    finally:
        free(runs)
