# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled parsing of a plain Produce request, the most frequent kind, from its frame to its last record.

A request is plain if it has a header with an ASCII client id, one topic with an ASCII name, one partition,
acks 1 or -1, no transaction and no tagged fields. Its only batch is uncompressed, of format 2, with zero
attributes, a valid checksum, well-formed records, and their largest timestamp in its header. All other
requests, valid or not, take the general path. The test oracle `tests/plain_produce_oracle.py` states the rules
in Python (docs/design/kafka-protocol-and-produce-path.md#plain-requests).

Nothing is read past the end of the frame. The frame cannot change during a call, which holds the GIL.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from crc32c import crc32c

cdef object checksum = crc32c

cdef enum:
    # Same values as in headers, produce_walk and record_batch.
    FIXED_HEADER = 10
    VERSION_MIN = 3
    FLEXIBLE_MIN = 9
    TOPIC_ID_MIN = 13
    VERSION_MAX = 13
    TOPIC_ID_BYTES = 16
    BATCH_HEADER = 61
    PREFIX = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    COUNT_AT = 57
    MAGIC = 2
    NO_TIMESTAMP = -1
    NO_PRODUCER_ID = -1

cdef struct Records:
    int64_t max_timestamp
    int64_t min_timestamp
    bint lacks_key


cdef inline uint32_t u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int32_t i32(const uint8_t *at) noexcept nogil:
    return <int32_t>u32(at)


cdef inline int16_t i16(const uint8_t *at) noexcept nogil:
    return <int16_t>((<uint16_t>at[0] << 8) | at[1])


cdef inline int64_t i64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>u32(at) << 32) | u32(at + 4))


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline bint is_ascii(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t bits = 0
    cdef Py_ssize_t index
    for index in range(size):
        bits |= at[index]
    return bits < 0x80


cdef inline const uint8_t *varint(const uint8_t *pos, const uint8_t *end, int32_t *value) noexcept nogil:
    """Return the end of a zigzag varint of at most five bytes; NULL if it is malformed."""
    cdef uint32_t bits = 0
    cdef int shift = 0
    while shift < 35 and pos < end:
        bits |= <uint32_t>(pos[0] & 0x7F) << shift
        pos += 1
        if (pos - 1)[0] < 0x80:
            value[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
            return pos
        shift += 7
    return NULL


cdef inline const uint8_t *varlong(const uint8_t *pos, const uint8_t *end, int64_t *value) noexcept nogil:
    cdef uint64_t bits = 0
    cdef int shift = 0
    while shift < 70 and pos < end:
        bits |= <uint64_t>(pos[0] & 0x7F) << shift
        pos += 1
        if (pos - 1)[0] < 0x80:
            value[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
            return pos
        shift += 7
    return NULL


cdef inline const uint8_t *nullable(const uint8_t *pos, const uint8_t *end, int32_t *length) noexcept nogil:
    """Return the end of a field; its length is negative if it is null."""
    pos = varint(pos, end, length)
    if pos == NULL or length[0] > end - pos:
        return NULL
    return pos + length[0] if length[0] > 0 else pos


cdef inline const uint8_t *record(
    const uint8_t *pos, const uint8_t *end, int32_t index, int64_t *delta, int32_t *key_length
) noexcept nogil:
    """Return the end of the record from `pos` to `end`; NULL if it does not fill the range exactly."""
    cdef int32_t number = 0, headers = 0
    if pos == end:
        return NULL
    pos = varlong(pos + 1, end, delta)
    if pos == NULL:
        return NULL
    pos = varint(pos, end, &number)
    if pos == NULL or number != index:
        return NULL
    pos = nullable(pos, end, key_length)
    if pos == NULL:
        return NULL
    pos = nullable(pos, end, &number)
    if pos == NULL:
        return NULL
    pos = varint(pos, end, &headers)
    if pos == NULL or headers < 0 or headers > end - pos:
        return NULL
    while headers > 0:
        headers -= 1
        pos = nullable(pos, end, &number)
        if pos == NULL or number < 0:
            return NULL
        pos = nullable(pos, end, &number)
        if pos == NULL:
            return NULL
    return pos if pos == end else NULL


cdef bint walk(const uint8_t *pos, const uint8_t *end, int32_t count, int64_t base, Records *found) noexcept nogil:
    """Whether `count` records fill the bytes exactly."""
    cdef int32_t index = 0, length = 0, key_length = 0
    cdef int64_t delta = 0, timestamp
    cdef const uint8_t *record_end
    found.max_timestamp = NO_TIMESTAMP
    found.min_timestamp = INT64_MAX
    found.lacks_key = False
    while index < count:
        pos = varint(pos, end, &length)
        if pos == NULL or length < 0 or length > end - pos:
            return False
        record_end = pos + length
        pos = record(pos, record_end, index, &delta, &key_length)
        if pos == NULL:
            return False
        timestamp = <int64_t>(<uint64_t>base + <uint64_t>delta)
        if timestamp > found.max_timestamp:
            found.max_timestamp = timestamp
        if timestamp < found.min_timestamp:
            found.min_timestamp = timestamp
        if key_length < 0:
            found.lacks_key = True
        index += 1
    return pos == end


cdef int check_place(bytearray frame, Py_ssize_t position, Py_ssize_t size) except -1:
    if position < 0 or size < BATCH_HEADER or size > PyByteArray_GET_SIZE(frame) - position:
        raise ValueError(f"no batch of {size} bytes lies at {position} of {len(frame)}")
    return 0


def read_plain_produce(frame):
    """Compiled; `tests/plain_produce_oracle.py` has the same `read_plain_produce` in Python."""
    cdef const uint8_t *start
    cdef const uint8_t *pos
    cdef const uint8_t *end
    cdef const uint8_t *batch
    cdef const uint8_t *name
    cdef Py_ssize_t name_bytes
    cdef int16_t version, acks
    cdef int32_t correlation_id, length, timeout_ms, index, count, base_sequence
    cdef int64_t producer_id, size
    cdef int shift
    cdef bint is_flexible
    if not PyByteArray_CheckExact(frame):
        return None
    start = <const uint8_t *>PyByteArray_AS_STRING(frame)
    end = start + PyByteArray_GET_SIZE(frame)
    # The header.
    if end - start < FIXED_HEADER or start[0] or start[1]:
        return None
    version = i16(start + 2)
    if version < VERSION_MIN or version > VERSION_MAX:
        return None
    is_flexible = version >= FLEXIBLE_MIN
    correlation_id = i32(start + 4)
    length = i16(start + 8)
    pos = start + FIXED_HEADER
    if length > 0:
        if length > end - pos or not is_ascii(pos, length):
            return None
        pos += length
    # From the transactional id to the topic.
    if is_flexible:
        if end - pos < 1 + 1 + 2 + 4 + 1 or pos[0] or pos[1]:  # tags of the header, transactional id
            return None
        acks = i16(pos + 2)
        timeout_ms = i32(pos + 4)
        if pos[8] != 2:
            return None
        pos += 9
    else:
        if end - pos < 2 + 2 + 4 + 4 or i16(pos) != -1:
            return None
        acks = i16(pos + 2)
        timeout_ms = i32(pos + 4)
        if i32(pos + 8) != 1:
            return None
        pos += 12
    if acks != -1 and acks != 1:
        return None
    if version >= TOPIC_ID_MIN:
        name_bytes = TOPIC_ID_BYTES
    elif is_flexible:
        if pos == end or pos[0] < 2 or pos[0] >= 0x80:
            return None
        name_bytes = pos[0] - 1
        pos += 1
    else:
        if end - pos < 2:
            return None
        name_bytes = i16(pos)
        if name_bytes <= 0:
            return None
        pos += 2
    if name_bytes > end - pos:
        return None
    name = pos
    pos += name_bytes
    if version < TOPIC_ID_MIN and not is_ascii(name, name_bytes):
        return None
    # The partition up to its records; only three empty tag buffers follow the records.
    if is_flexible:
        if end - pos < 1 + 4 or pos[0] != 2:
            return None
        index = i32(pos + 1)
        pos += 5
        size = 0
        shift = 0
        while True:
            if pos == end or shift == 35:
                return None
            size |= <int64_t>(pos[0] & 0x7F) << shift
            shift += 7
            pos += 1
            if (pos - 1)[0] < 0x80:
                break
        size -= 1
        if size < BATCH_HEADER or end - pos != size + 3 or (end - 1)[0] or (end - 2)[0] or (end - 3)[0]:
            return None
        end -= 3
    else:
        if end - pos < 4 + 4 + 4 or i32(pos) != 1:
            return None
        index = i32(pos + 4)
        size = i32(pos + 8)
        pos += 12
        if size < BATCH_HEADER or end - pos != size:
            return None
    # The batch.
    batch = pos
    count = i32(batch + COUNT_AT)
    producer_id = i64(batch + 43)
    base_sequence = i32(batch + 53)
    if (
        batch[MAGIC_AT] != MAGIC
        or i64(batch) != 0
        or <int64_t>i32(batch + 8) + PREFIX != size
        or i16(batch + ATTRIBUTES_AT) != 0
        or count <= 0
        or count - 1 != i32(batch + 23)
        or (producer_id != NO_PRODUCER_ID and (producer_id < 0 or i16(batch + 51) < 0 or base_sequence < 0))
    ):
        return None
    topic = (
        PyBytes_FromStringAndSize(<const char *>name, name_bytes)
        if version >= TOPIC_ID_MIN
        else PyUnicode_DecodeASCII(<const char *>name, name_bytes, NULL)
    )
    return (
        version,
        correlation_id,
        timeout_ms,
        topic,
        index,
        batch - start,
        size,
        count,
        producer_id,
        i16(batch + 51),
        base_sequence,
    )


def walk_plain_batch(bytearray frame not None, Py_ssize_t position, Py_ssize_t size):
    """Compiled; `tests/plain_produce_oracle.py` has the same `walk_plain_batch` in Python."""
    cdef const uint8_t *batch
    cdef Records records
    cdef object newest
    check_place(frame, position, size)
    batch = <const uint8_t *>PyByteArray_AS_STRING(frame) + position
    if not walk(batch + BATCH_HEADER, batch + size, i32(batch + COUNT_AT), i64(batch + 27), &records):
        return None
    if records.max_timestamp != i64(batch + 35):
        return None
    view = memoryview(frame)
    if checksum(view[position + ATTRIBUTES_AT : position + size]) != u32(batch + CRC_AT):
        return None
    newest = records.max_timestamp
    # Equal timestamps, as in every batch of one record, share one object to save memory in retained batches.
    return newest, newest if records.min_timestamp == records.max_timestamp else records.min_timestamp, bool(records.lacks_key)


def stamped_copy(bytearray frame not None, Py_ssize_t position, Py_ssize_t size, int64_t base_offset,
                 int32_t leader_epoch):
    """Compiled; `tests/plain_produce_oracle.py` has the same `stamped_copy` in Python."""
    cdef bytes copied
    cdef uint8_t *at
    check_place(frame, position, size)
    copied = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(frame) + position, size)
    at = <uint8_t *>PyBytes_AS_STRING(copied)
    put32(at, <uint32_t>(<uint64_t>base_offset >> 32))
    put32(at + 4, <uint32_t>base_offset)
    put32(at + PREFIX, <uint32_t>leader_epoch)
    return copied
