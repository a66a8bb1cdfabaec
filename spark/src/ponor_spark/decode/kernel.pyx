# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled walk over the records of uncompressed batches into the buffers of Arrow arrays.

It never reads past the end of the data or of a record, and copies each byte of a key, a value or a header once, to where
Arrow reads it. The test oracle `tests/kernel_oracle.py` returns the same arrays and explains the rules.
"""

from cython cimport no_gc
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import pyarrow as pa
from crc32c import crc32c
from ponor_kafka.record_rules import malformed

from ponor_spark.decode.columns import TIMESTAMP_TYPE_US, fixed, header_lists, variable
from ponor_spark.decode.errors import timestamp_too_large

include "kernel_wire.pxi"
include "kernel_block.pxi"
include "kernel_memory.pxi"

cdef int64_t MS_MAX = 0x7FFFFFFFFFFFFFFF // 1000


cdef class RowBuilder:
    """See `RowBuilder` in `tests/kernel_oracle.py`."""

    cdef readonly int64_t rows, place
    cdef readonly bint is_open
    cdef bint wants_key, wants_value, wants_headers, wants_offset, wants_timestamp, wants_type
    cdef int64_t rows_max, bytes_max, used
    cdef Variable keys, values, header_keys, header_values
    cdef Bytes offsets, timestamps, types, header_ends, header_bits
    cdef int64_t header_nulls
    cdef Recycler recycler
    # State of the open batch.
    cdef Py_buffer buffer
    cdef const uint8_t *pos
    cdef const uint8_t *data_end
    cdef int32_t index, count, previous_delta, last_offset_delta
    cdef int64_t base_offset, base_timestamp, start_offset, end_offset, start_ms, last_ms
    cdef bint is_append_time

    def __init__(self, columns, int64_t rows_max, int64_t bytes_max):
        self.wants_key = "key" in columns
        self.wants_value = "value" in columns
        self.wants_headers = "headers" in columns
        self.wants_offset = "offset" in columns
        self.wants_timestamp = "timestamp" in columns
        self.wants_type = "timestampType" in columns
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.recycler = Recycler()
        cdef Pool *pool = &self.recycler.pool
        join(&self.keys, pool)
        join(&self.values, pool)
        join(&self.header_keys, pool)
        join(&self.header_values, pool)
        self.offsets.pool = self.timestamps.pool = self.types.pool = pool
        self.header_ends.pool = self.header_bits.pool = pool

    def __dealloc__(self):
        release_variable(&self.keys)
        release_variable(&self.values)
        release_variable(&self.header_keys)
        release_variable(&self.header_values)
        release(&self.offsets)
        release(&self.timestamps)
        release(&self.types)
        release(&self.header_ends)
        release(&self.header_bits)
        self.close()

    cdef void close(self) noexcept:
        if self.is_open:
            self.is_open = False
            PyBuffer_Release(&self.buffer)

    def open(self, data, window):
        assert not self.is_open, "the batch before is not finished"
        (
            self.place, self.count, self.base_offset, self.last_offset_delta, self.base_timestamp, self.is_append_time,
            self.start_offset, self.end_offset, self.start_ms, self.last_ms,
        ) = window
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.is_open = True
        self.begin_walk(<const uint8_t *>self.buffer.buf, <const uint8_t *>self.buffer.buf + self.buffer.len)

    def decode_more(self):
        assert self.is_open, "no batch is open"
        cdef int ended = FITS
        try:
            ended = self.walk_records()
        finally:
            if ended != FULL:
                self.close()
        return ended != FULL

    def take_plain(self, data, Py_ssize_t at, int64_t expected, bounds):
        """See `RowBuilder.take_plain` in `tests/kernel_oracle.py`; decodes plain batches only."""
        assert not self.is_open, "the batch before is not finished"
        cdef int64_t shift, end_offset
        cdef const uint8_t *begin
        cdef const uint8_t *record
        cdef Py_ssize_t size
        cdef PlainBatch batch
        cdef int ended = FITS
        shift, self.start_offset, end_offset, self.start_ms, self.last_ms = bounds
        self.end_offset = end_offset
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.is_open = True
        begin = <const uint8_t *>self.buffer.buf
        size = self.buffer.len
        try:
            while ended == FITS and is_plain(begin + at, size - at, &batch):
                if not -OFFSET_SAFE_MAX < shift < OFFSET_SAFE_MAX or 0 <= expected != batch.stream_offset:
                    break
                self.place = batch.stream_offset + shift
                if self.place < self.start_offset or self.place + batch.offsets > end_offset:
                    break
                record = begin + at + STREAM_HEADER_BYTES
                if batch.max_timestamp < self.start_ms or crc32c(
                    data[at + STREAM_HEADER_BYTES + CHECKED_AT : at + batch.size]
                ) != number32(record + CRC_AT):
                    break
                self.base_offset = self.place + batch.offsets - batch.last_offset_delta - 1
                self.count, self.last_offset_delta = batch.record_count, batch.last_offset_delta
                self.is_append_time = batch.is_append_time
                self.base_timestamp = batch.max_timestamp if batch.is_append_time else batch.base_timestamp
                at += batch.size
                expected = batch.stream_offset + batch.offsets
                self.begin_walk(record + BATCH_HEADER_BYTES, begin + at)
                ended = self.walk_records()
        finally:
            if ended != FULL:
                self.close()
        return at, expected

    cdef inline void begin_walk(self, const uint8_t *begin, const uint8_t *end) noexcept:
        self.pos = begin
        self.data_end = end
        self.index = 0
        self.previous_delta = -1

    cdef int walk_records(self) except -1:
        """Decode records until the batch ends (FITS), or there is no room for the next row (FULL)."""
        cdef Walk walk
        cdef int broken = FITS
        walk.value = walk.left = 0
        walk.pos = self.pos
        while self.index < self.count:
            self.pos = walk.pos
            walk.end = self.data_end
            broken = self.record(&walk)
            if broken:
                break
            self.index += 1
        if broken == FULL:
            return FULL
        if broken == FITS and walk.pos != self.data_end:
            walk.end = self.data_end
            broken = refused(&walk, RECORDS_LEFT, 0)
        if broken:
            self.refuse(broken, &walk)
        return FITS

    cdef int refuse(self, int broken, Walk *walk) except -1:
        if broken == NO_MEMORY:
            raise MemoryError
        if broken == TIMESTAMP:
            raise timestamp_too_large(self.index, walk.value)
        raise malformed(broken, self.index, walk.value, 0 if broken == OFFSET else walk.left)

    cdef inline int record(self, Walk *walk) except -1:
        """Decode the record at `pos`, or skip it if it is outside the window."""
        cdef int32_t length = 0, delta = 0
        cdef int64_t timestamp = 0, offset
        cdef int broken = varint(walk, &length)
        if broken:
            return broken
        if length <= 0 or length > walk.end - walk.pos:
            return refused(walk, LENGTH, length)
        walk.end = walk.pos + length
        walk.pos += 1  # attributes: Kafka defines no bit of them yet
        broken = varlong(walk, &timestamp) or varint(walk, &delta)
        if broken:
            return broken
        if delta <= self.previous_delta or delta > self.last_offset_delta:
            return refused(walk, OFFSET, delta)
        offset = self.base_offset + delta
        timestamp = (
            self.base_timestamp if self.is_append_time else <int64_t>(<uint64_t>self.base_timestamp + <uint64_t>timestamp)
        )
        if (
            self.start_offset <= offset < self.end_offset
            and self.start_ms <= timestamp <= self.last_ms
        ):
            broken = self.row(walk, offset, timestamp)
            if broken:
                return broken
        self.previous_delta = delta
        walk.pos = walk.end
        return FITS

    cdef inline int row(self, Walk *walk, int64_t offset, int64_t timestamp) except -1:
        """Append the row of the record whose key begins at `pos`."""
        cdef int32_t key_length = 0, value_length = 0
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef int64_t cost = 0
        cdef int broken
        if self.wants_key or self.wants_value or self.wants_headers:
            broken = nullable(walk, KEY, &key, &key_length)
            if broken:
                return broken
            if self.wants_key and key_length > 0:
                cost += key_length
        if self.wants_value or self.wants_headers:
            broken = nullable(walk, VALUE, &value, &value_length)
            if broken:
                return broken
            if self.wants_value and value_length > 0:
                cost += value_length
        if self.wants_headers:
            cost += walk.end - walk.pos
        if self.rows > 0 and (self.rows >= self.rows_max or self.used + cost > self.bytes_max):
            return FULL
        if self.wants_timestamp and not -MS_MAX <= timestamp <= MS_MAX:
            return refused(walk, TIMESTAMP, timestamp)
        self.used += cost
        if self.wants_key and (begin(&self.keys) or put(&self.keys, key, key_length)):
            return NO_MEMORY
        if self.wants_value and (begin(&self.values) or put(&self.values, value, value_length)):
            return NO_MEMORY
        if self.wants_offset and put64(&self.offsets, offset):
            return NO_MEMORY
        if self.wants_timestamp and put64(&self.timestamps, 1000 * timestamp):
            return NO_MEMORY
        if self.wants_type and put32(&self.types, self.is_append_time):
            return NO_MEMORY
        if self.wants_headers:
            broken = self.headers(walk)
            if broken:
                return broken
        self.rows += 1
        return FITS

    cdef inline int headers(self, Walk *walk) except -1:
        cdef int32_t headers = 0, length = 0
        cdef const uint8_t *start = NULL
        cdef int broken = varint(walk, &headers)
        if broken:
            return broken
        if headers < 0 or headers > walk.end - walk.pos:
            return refused(walk, HEADER_COUNT, headers)
        if begin(&self.header_keys) or begin(&self.header_values):
            return NO_MEMORY
        if self.header_ends.size == 0 and put32(&self.header_ends, 0):
            return NO_MEMORY
        if headers == 0:
            self.header_nulls += 1
            if put_null(&self.header_bits, self.rows):
                return NO_MEMORY
        while headers > 0:
            headers -= 1
            broken = nullable(walk, HEADER_KEY, &start, &length)
            if broken:
                return broken
            if length < 0:
                return refused(walk, HEADER_KEY, length)
            broken = put(&self.header_keys, start, length) if is_ascii(start, length) else self.header_key(start, length)
            if broken:
                return broken
            broken = nullable(walk, HEADER_VALUE, &start, &length)
            if broken:
                return broken
            if put(&self.header_values, start, length):
                return NO_MEMORY
        if walk.pos != walk.end:
            return refused(walk, BODY_LEFT, 0)
        return put32(&self.header_ends, self.header_keys.count)

    cdef int header_key(self, const uint8_t *start, int32_t length) except -1:
        """Append a header key that is not ASCII. Invalid UTF-8 is replaced, as in Java's clients."""
        cdef bytes replaced = PyBytes_FromStringAndSize(<const char *>start, length).decode("utf-8", "replace").encode()
        return put(&self.header_keys, <const uint8_t *>PyBytes_AS_STRING(replaced), <int32_t>len(replaced))

    def take(self):
        cdef int64_t rows = self.rows, nulls = self.header_nulls
        assert rows > 0, "there are no rows"
        recycler = self.recycler
        columns = {}
        if self.wants_key:
            columns["key"] = detached_variable(&self.keys, pa.binary(), recycler)
        if self.wants_value:
            columns["value"] = detached_variable(&self.values, pa.binary(), recycler)
        if self.wants_offset:
            columns["offset"] = fixed(pa.int64(), rows, detached(&self.offsets, recycler))
        if self.wants_timestamp:
            columns["timestamp"] = fixed(TIMESTAMP_TYPE_US, rows, detached(&self.timestamps, recycler))
        if self.wants_type:
            columns["timestampType"] = fixed(pa.int32(), rows, detached(&self.types, recycler))
        if self.wants_headers:
            keys = detached_variable(&self.header_keys, pa.string(), recycler)
            values = detached_variable(&self.header_values, pa.binary(), recycler)
            bits = detached_bits(&self.header_bits, nulls, rows, recycler)
            columns["headers"] = header_lists(rows, nulls, bits, detached(&self.header_ends, recycler), keys, values)
        self.rows = self.used = self.header_nulls = 0
        return columns
