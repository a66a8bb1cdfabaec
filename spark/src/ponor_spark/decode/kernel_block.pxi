# Plain batches within a data block. Part of kernel.pyx; the module `batches` handles all other batches.
#
# Reads only two headers: that of the stream record, and that of the batch in the record.

cdef enum:
    STREAM_HEADER_BYTES = 40
    BATCH_HEADER_BYTES = 61
    LENGTH_PREFIX_BYTES = 12
    RECORD_BYTES_MIN = 7
    MAGIC = 2
    PLAIN_BYTES_MAX = 1 << 24
    COUNT_MAX = 0x7FFFFFFF
    # Positions of fields in the two headers; all fields are big-endian.
    STREAM_OFFSET_AT = 16
    OFFSETS_AT = 32
    PAYLOAD_BYTES_AT = 36
    LENGTH_AT = 8
    MAGIC_AT = 16
    CRC_AT = 17
    CHECKED_AT = 21
    ATTRIBUTES_AT = 22      # the low byte
    LAST_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    RECORD_COUNT_AT = 57
    # Attributes.
    APPEND_TIME_BIT = 0x08
    NOT_PLAIN_BITS = 0x37   # codec, transactional, control

cdef int64_t OFFSET_SAFE_MAX = <int64_t>1 << 61   # the sum of two such offsets fits into 64 bits

cdef struct PlainBatch:
    int64_t stream_offset
    int64_t base_timestamp
    int64_t max_timestamp
    uint32_t offsets            # number of offsets that the stream record covers
    int32_t last_offset_delta
    int32_t record_count
    Py_ssize_t size             # of the stream record with its header
    bint is_append_time


cdef inline uint32_t number32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t number64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>number32(at) << 32) | number32(at + 4))


cdef inline bint is_plain(const uint8_t *at, Py_ssize_t left, PlainBatch *batch) noexcept nogil:
    """Return whether a complete batch without compression and transactions begins at `at`. The checksum is
    not verified.
    """
    cdef const uint8_t *header = at + STREAM_HEADER_BYTES
    cdef uint32_t payload_bytes
    if left < STREAM_HEADER_BYTES + BATCH_HEADER_BYTES:
        return False
    payload_bytes = number32(at + PAYLOAD_BYTES_AT)
    if not BATCH_HEADER_BYTES <= payload_bytes <= PLAIN_BYTES_MAX or payload_bytes > left - STREAM_HEADER_BYTES:
        return False
    if number32(header + LENGTH_AT) + LENGTH_PREFIX_BYTES != payload_bytes or header[MAGIC_AT] != MAGIC:
        return False
    batch.size = STREAM_HEADER_BYTES + payload_bytes
    batch.stream_offset = number64(at + STREAM_OFFSET_AT)
    batch.offsets = number32(at + OFFSETS_AT)
    batch.is_append_time = header[ATTRIBUTES_AT] & APPEND_TIME_BIT != 0
    batch.last_offset_delta = <int32_t>number32(header + LAST_DELTA_AT)
    batch.base_timestamp = number64(header + BASE_TIMESTAMP_AT)
    batch.max_timestamp = number64(header + MAX_TIMESTAMP_AT)
    batch.record_count = <int32_t>number32(header + RECORD_COUNT_AT)
    return (
        header[ATTRIBUTES_AT] & NOT_PLAIN_BITS == 0
        and 0 <= batch.stream_offset < OFFSET_SAFE_MAX
        and 1 <= batch.offsets <= COUNT_MAX
        and 0 <= batch.last_offset_delta < batch.offsets
        and 0 < batch.record_count
        and <int64_t>batch.record_count * RECORD_BYTES_MIN <= payload_bytes - BATCH_HEADER_BYTES
    )
