# Encoded numbers and fields of a record in a batch. Part of kernel.pyx.
#
# Reads integers and varints within bounds. Allocates no memory.

cdef enum:
    # As in ponor_kafka.record_rules.Rule.
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
    # Results that only this module has.
    TIMESTAMP = 100
    FULL = 101
    NO_MEMORY = 102

cdef struct Walk:
    const uint8_t *pos
    const uint8_t *end     # of the record, or of the data while a record's length is read
    int64_t value          # the invalid value, for the error
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


cdef inline int nullable(Walk *walk, int rule, const uint8_t **start, int32_t *length) noexcept nogil:
    """Read a nullable field: its bytes are [start, start + length); a length of -1 means null."""
    cdef int broken = varint(walk, length)
    if broken:
        return broken
    start[0] = walk.pos
    if length[0] < 0:
        length[0] = -1
        return FITS
    if length[0] > walk.end - walk.pos:
        return refused(walk, rule, length[0])
    walk.pos += length[0]
    return FITS


cdef inline bint is_ascii(const uint8_t *start, int32_t length) noexcept nogil:
    cdef uint64_t eight
    cdef uint8_t any_ = 0
    while length >= 8:
        memcpy(&eight, start, 8)
        if eight & 0x8080808080808080u:
            return False
        start += 8
        length -= 8
    while length > 0:
        any_ |= start[0]
        start += 1
        length -= 1
    return any_ < 0x80
