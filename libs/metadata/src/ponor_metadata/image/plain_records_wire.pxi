# The subset of protobuf's wire format that plain records use. Part of plain_records_native; protobuf decodes
# everything else.

cdef enum:
    FIELDS = 8


cdef struct Bytes:
    const uint8_t *pos
    const uint8_t *end


cdef struct Fields:
    int64_t number[FIELDS]
    Bytes data[FIELDS]


cdef inline bint varint(Bytes *at, uint64_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at.pos < at.end and shift < 64:
        byte = at.pos[0]
        at.pos += 1
        if shift == 63 and byte > 1:
            return False
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = value
            return True
        shift += 7
    return False


cdef inline bint delimited(Bytes *at, Bytes *out) noexcept nogil:
    cdef uint64_t length
    if not varint(at, &length) or length > <uint64_t>(at.end - at.pos):
        return False
    out.pos = at.pos
    at.pos += length
    out.end = at.pos
    return True


cdef bint read_fields(Bytes at, Fields *fields, uint32_t numbers, uint32_t lengths) noexcept nogil:
    """Read the fields of a message; False if one is not in the given bit sets or a number is not in [0, 2^63)."""
    cdef uint64_t tag, value
    memset(fields, 0, sizeof(Fields))
    while at.pos < at.end:
        if not varint(&at, &tag) or tag >= FIELDS * 8:
            return False
        if tag & 7 == 0 and numbers >> (tag >> 3) & 1:
            if not varint(&at, &value) or value >> 63:
                return False
            fields.number[tag >> 3] = <int64_t>value
        elif tag & 7 == 2 and lengths >> (tag >> 3) & 1:
            if not delimited(&at, &fields.data[tag >> 3]):
                return False
        else:
            return False
    return True


cdef inline bytes copied(Bytes data):
    return b"" if data.pos is NULL else PyBytes_FromStringAndSize(<const char *>data.pos, data.end - data.pos)


cdef inline str text(Bytes data):
    if data.pos is NULL:
        return ""
    return PyUnicode_DecodeUTF8(<const char *>data.pos, data.end - data.pos, NULL)
