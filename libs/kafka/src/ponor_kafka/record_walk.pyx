# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled validation of a batch's uncompressed records, as a broker does for every produced record.

The rules are those of Apache Kafka 4.3 (`DefaultRecord.readFrom`, `LogValidator.validateRecord`). The test oracle
`tests/record_walk_oracle.py` states them in Python (docs/design/kafka-protocol-and-produce-path.md#record-validation).

It allocates only the reported faults and never reads past the end of the buffer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ponor_kafka.record_rules import RecordFault, RecordWalk, malformed

cdef enum:
    # Same numbers as in record_rules.Rule.
    FITS = 0
    NUMBER_ENDS = 1
    NUMBER_TOO_LONG = 2
    LENGTH = 3
    KEY = 4
    VALUE = 5
    HEADER_COUNT = 6
    HEADER_KEY = 7
    HEADER_VALUE = 8
    BODY_LEFT = 9
    RECORDS_LEFT = 10
    OFFSET = 11

cdef struct Walk:
    const uint8_t *pos
    const uint8_t *end     # of the record, or of the data while a record's length is read
    int64_t value          # what the error is about
    int64_t left


cdef inline int varint(Walk *walk, int32_t *out) noexcept nogil:
    cdef uint32_t bits = 0
    cdef uint8_t byte
    cdef int shift = 0
    if walk.pos < walk.end and walk.pos[0] < 0x80:
        bits = walk.pos[0]
        walk.pos += 1
        out[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
        return FITS
    while shift < 35:
        if walk.pos >= walk.end:
            return NUMBER_ENDS
        byte = walk.pos[0]
        walk.pos += 1
        bits |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
            return FITS
        shift += 7
    return NUMBER_TOO_LONG


cdef inline int varlong(Walk *walk, int64_t *out) noexcept nogil:
    cdef uint64_t bits = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 70:
        if walk.pos >= walk.end:
            return NUMBER_ENDS
        byte = walk.pos[0]
        walk.pos += 1
        bits |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
            return FITS
        shift += 7
    return NUMBER_TOO_LONG


cdef inline int refused(Walk *walk, int rule, int64_t value) noexcept nogil:
    walk.value = value
    walk.left = walk.end - walk.pos
    return rule


cdef inline int nullable(Walk *walk, int rule, int32_t *length) noexcept nogil:
    cdef int broken = varint(walk, length)
    if broken:
        return broken
    if length[0] < 0:
        return FITS
    if length[0] > walk.end - walk.pos:
        return refused(walk, rule, length[0])
    walk.pos += length[0]
    return FITS


cdef inline int record(Walk *walk, int32_t index, int64_t *timestamp_delta, int32_t *key_length) noexcept nogil:
    """Check the record from `pos` to `end`."""
    cdef int32_t number, headers
    cdef int broken
    if walk.pos == walk.end:
        return NUMBER_ENDS
    walk.pos += 1  # attributes: no bit of them means anything yet
    broken = varlong(walk, timestamp_delta)
    if broken:
        return broken
    broken = varint(walk, &number)
    if broken:
        return broken
    if number != index:
        return refused(walk, OFFSET, number)
    broken = nullable(walk, KEY, key_length)
    if broken:
        return broken
    broken = nullable(walk, VALUE, &number)
    if broken:
        return broken
    broken = varint(walk, &headers)
    if broken:
        return broken
    if headers < 0 or headers > walk.end - walk.pos:
        return refused(walk, HEADER_COUNT, headers)
    while headers > 0:
        headers -= 1
        broken = nullable(walk, HEADER_KEY, &number)
        if broken:
            return broken
        if number < 0:
            return refused(walk, HEADER_KEY, number)
        broken = nullable(walk, HEADER_VALUE, &number)
        if broken:
            return broken
    if walk.pos != walk.end:
        return refused(walk, BODY_LEFT, 0)
    return FITS


cdef inline int record_length(Walk *walk, int32_t *length) noexcept nogil:
    cdef int broken = varint(walk, length)
    if broken:
        return broken
    if length[0] < 0 or length[0] > walk.end - walk.pos:
        return refused(walk, LENGTH, length[0])
    return FITS


cdef inline int timestamp_delta(Walk *walk, int64_t *delta) noexcept nogil:
    """Read the record at `pos` up to its timestamp delta; set `end` to the end of the record."""
    cdef int32_t length = 0
    cdef int broken = record_length(walk, &length)
    if broken:
        return broken
    if length == 0:
        return refused(walk, LENGTH, 0)
    walk.end = walk.pos + length
    walk.pos += 1  # attributes
    return varlong(walk, delta)


def walk_records(data, int32_t count, int64_t base_timestamp, bint is_fixed_timestamp, bint keys_required,
                 int64_t timestamp_min, int64_t timestamp_max, Py_ssize_t faults_max):
    """Compiled; `tests/record_walk_oracle.py` has the same `walk_records` in Python."""
    cdef Py_buffer buffer
    cdef Walk walk
    cdef const uint8_t *data_end
    cdef int32_t index = 0, length = 0, key_length = 0, max_index = -1
    cdef int64_t delta = 0, timestamp, max_timestamp = -1, min_timestamp = INT64_MAX
    cdef Py_ssize_t missing_keys = 0, bad_timestamps = 0, described = 0
    cdef bint lacks_key, is_bad_time
    cdef int broken = FITS
    faults = []
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        walk.pos = <const uint8_t *>buffer.buf
        walk.end = data_end = walk.pos + buffer.len
        walk.value = walk.left = 0
        while index < count:
            broken = record_length(&walk, &length)
            if broken:
                break
            walk.end = walk.pos + length
            broken = record(&walk, index, &delta, &key_length)
            if broken:
                break
            walk.end = data_end
            timestamp = base_timestamp if is_fixed_timestamp else <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                max_index = index
            if timestamp < min_timestamp:
                min_timestamp = timestamp
            lacks_key = keys_required and key_length < 0
            is_bad_time = timestamp != -1 and (timestamp < timestamp_min or timestamp > timestamp_max)
            if lacks_key or is_bad_time:
                if lacks_key:
                    missing_keys += 1
                else:
                    bad_timestamps += 1
                if described < faults_max:
                    described += 1
                    faults.append(RecordFault(index, bool(lacks_key), timestamp))
            index += 1
        if not broken and walk.pos != data_end:
            broken = refused(&walk, RECORDS_LEFT, 0)
        if broken:
            if broken == OFFSET:
                walk.left = 0
            raise malformed(broken, count if broken == RECORDS_LEFT else index, walk.value, walk.left)
    finally:
        PyBuffer_Release(&buffer)
    return RecordWalk(max_timestamp, max_index, missing_keys, bad_timestamps, faults, min_timestamp)


def first_at_or_after(data, int32_t count, int64_t base_timestamp, int64_t timestamp, int64_t offset_delta_min):
    """Compiled; `tests/record_walk_oracle.py` has the same `first_at_or_after` in Python."""
    cdef Py_buffer buffer
    cdef Walk walk
    cdef const uint8_t *data_end
    cdef int32_t index = 0, offset_delta = 0
    cdef int64_t delta = 0, found
    cdef int broken = FITS
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        walk.pos = <const uint8_t *>buffer.buf
        walk.end = data_end = walk.pos + buffer.len
        walk.value = walk.left = 0
        while index < count:
            broken = timestamp_delta(&walk, &delta)
            if broken:
                break
            found = <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)
            if found >= timestamp:
                broken = varint(&walk, &offset_delta)
                if broken:
                    break
                if offset_delta >= offset_delta_min:
                    return offset_delta, found
            walk.pos = walk.end
            walk.end = data_end
            index += 1
        if broken:
            raise malformed(broken, index, walk.value, walk.left)
    finally:
        PyBuffer_Release(&buffer)
    return None


def newest(data, int32_t count, int64_t base_timestamp, int64_t offset_delta_min):
    """Compiled; `tests/record_walk_oracle.py` has the same `newest` in Python."""
    cdef Py_buffer buffer
    cdef Walk walk
    cdef const uint8_t *data_end
    cdef int32_t index = 0, offset_delta = 0, found_delta = -1
    cdef int64_t delta = 0, timestamp, found = 0
    cdef int broken = FITS
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        walk.pos = <const uint8_t *>buffer.buf
        walk.end = data_end = walk.pos + buffer.len
        walk.value = walk.left = 0
        while index < count:
            broken = timestamp_delta(&walk, &delta) or varint(&walk, &offset_delta)
            if broken:
                break
            timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)
            if 0 <= offset_delta >= offset_delta_min and (found_delta < 0 or timestamp > found):
                found_delta, found = offset_delta, timestamp
            walk.pos = walk.end
            walk.end = data_end
            index += 1
        if broken:
            raise malformed(broken, index, walk.value, walk.left)
    finally:
        PyBuffer_Release(&buffer)
    return None if found_delta < 0 else (found_delta, found)
