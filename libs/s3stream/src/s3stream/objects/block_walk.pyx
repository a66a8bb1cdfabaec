# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled walk over the record headers of a block, up to the first record that breaks a rule.

It never reads past the end of the buffer. `block.py` writes the error message for a broken rule. The test oracle
`tests/block_walk_oracle.py` states the rules in Python.
"""

from cpython cimport array
from libc.limits cimport LLONG_MIN
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    HEADER_BYTES = 40
    COUNT_MAX = 0x7FFFFFFF
    # Where the fields of a header begin; all of them big-endian.
    EPOCH_AT = 8
    BASE_OFFSET_AT = 16
    MAX_TIMESTAMP_AT = 24
    COUNT_AT = 32
    PAYLOAD_BYTES_AT = 36


cdef inline uint32_t number32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t number64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>number32(at) << 32) | number32(at + 4))


def walk(
    const uint8_t[::1] data,
    Py_ssize_t at,
    Py_ssize_t records_max,
    int64_t stream_id,
    int64_t epoch,
    int64_t offset,
    array.array positions,
    array.array base_offsets,
):
    """Append position and base offset of each record to the arrays.

    Args:
        data: the block.
        at: position of the first record.
        records_max: maximum number of records.
        stream_id: stream of the block.
        epoch: epoch of the stream.
        offset: expected base offset of the first record.
        positions: receives the position of each record, as unsigned 32 bits.
        base_offsets: receives the base offset of each record, as signed 64 bits.

    Returns:
        The position after the last record, its end offset, and the largest timestamp (`TIMESTAMP_MIN` without records).
    """
    cdef Py_ssize_t length = data.shape[0]
    cdef Py_ssize_t before = len(positions)
    cdef Py_ssize_t found = 0
    cdef Py_ssize_t room = min(records_max, (length - at) // HEADER_BYTES)
    cdef const uint8_t *header
    cdef uint32_t count, payload_bytes
    cdef int64_t timestamp
    cdef int64_t max_timestamp = LLONG_MIN
    if room <= 0:
        return at, offset, max_timestamp
    array.resize_smart(positions, before + room)
    array.resize_smart(base_offsets, before + room)
    while found < room and length - at >= HEADER_BYTES:
        header = &data[at]
        count = number32(header + COUNT_AT)
        payload_bytes = number32(header + PAYLOAD_BYTES_AT)
        if (
            number64(header) != stream_id
            or number64(header + EPOCH_AT) != epoch
            or number64(header + BASE_OFFSET_AT) != offset
            or not 1 <= count <= COUNT_MAX
            or payload_bytes > length - at - HEADER_BYTES
            or offset > 0x7FFFFFFFFFFFFFFF - <int64_t>count
        ):
            break
        timestamp = number64(header + MAX_TIMESTAMP_AT)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        positions.data.as_uints[before + found] = <uint32_t>at
        base_offsets.data.as_longlongs[before + found] = offset
        offset += count
        at += HEADER_BYTES + payload_bytes
        found += 1
    array.resize(positions, before + found)
    array.resize(base_offsets, before + found)
    return at, offset, max_timestamp
