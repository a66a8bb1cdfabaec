# Memory of columns. It grows while a column is written, then Arrow reads it, and it returns to a pool when
# the last reader releases it. Part of kernel.pyx.
#
# Contains pieces of memory, their pool, and the layout of Arrow's variable-length columns in them.

cdef enum:
    PIECE_BYTES_MIN = 1 << 12
    PIECE_BYTES_KEPT_MAX = 64 << 20
    PIECES_KEPT_MAX = 32
    PIECE_SLACK = 8

cdef struct Piece:
    uint8_t *data
    size_t capacity

cdef struct Pool:
    # Memory of released batches. Each page of new memory costs a page fault, which takes longer than filling
    # the page.
    Piece pieces[PIECES_KEPT_MAX]
    int count

cdef struct Bytes:
    uint8_t *data
    size_t size
    size_t capacity        # if `data` is NULL: minimum capacity of the next piece
    Pool *pool

cdef struct Variable:
    # A column of values of variable length, in Arrow's layout.
    Bytes data
    Bytes offsets          # int32; one more offset than values
    Bytes bits             # 1: not null. Values beyond the end of the bitmap are not null
    int64_t count
    int64_t nulls


cdef class Recycler:
    """Owns the pool of a builder; lives as long as any memory that will return to the pool."""

    cdef Pool pool

    def __dealloc__(self):
        while self.pool.count > 0:
            self.pool.count -= 1
            free(self.pool.pieces[self.pool.count].data)


@no_gc  # a Memory is in no reference cycle, and `__dealloc__` needs its recycler
cdef class Memory:
    """A piece of memory that exists as long as it has readers. Arrow reads it through the buffer protocol."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef size_t capacity
    cdef Recycler recycler

    def __dealloc__(self):
        give_back(&self.recycler.pool, self.data, self.capacity)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)


cdef void give_back(Pool *pool, uint8_t *data, size_t capacity) noexcept nogil:
    if pool.count == PIECES_KEPT_MAX or capacity > PIECE_BYTES_KEPT_MAX:
        free(data)
        return
    pool.pieces[pool.count].data = data
    pool.pieces[pool.count].capacity = capacity
    pool.count += 1


cdef bint reuse(Bytes *bytes_, size_t capacity) noexcept nogil:
    """Take the smallest sufficient piece of the pool, at most PIECE_SLACK times as large as requested."""
    cdef Pool *pool = bytes_.pool
    cdef size_t has, best_has = PIECE_SLACK * capacity + 1
    cdef int index, best = -1
    for index in range(pool.count):
        has = pool.pieces[index].capacity
        if capacity <= has < best_has:
            best, best_has = index, has
    if best < 0:
        return False
    bytes_.data = pool.pieces[best].data
    bytes_.capacity = best_has
    pool.count -= 1
    pool.pieces[best] = pool.pieces[pool.count]
    return True


cdef int grow(Bytes *bytes_, size_t room) noexcept nogil:
    """Make room for `room` more bytes. Capacities are powers of two, so that a returned piece also suffices
    for a slightly larger batch.
    """
    cdef size_t capacity = PIECE_BYTES_MIN, wanted = bytes_.size + room
    cdef void *larger
    if bytes_.data != NULL and bytes_.capacity - bytes_.size >= room:
        return FITS
    if wanted < bytes_.capacity:
        wanted = bytes_.capacity
    while capacity < wanted:
        capacity *= 2
    if bytes_.data == NULL and reuse(bytes_, capacity):
        return FITS
    larger = realloc(bytes_.data, capacity)
    if larger == NULL:
        return NO_MEMORY
    bytes_.data = <uint8_t *>larger
    bytes_.capacity = capacity
    return FITS


cdef inline int put32(Bytes *bytes_, int64_t value) noexcept nogil:
    if bytes_.data == NULL or bytes_.capacity - bytes_.size < 4:
        if grow(bytes_, 4):
            return NO_MEMORY
    (<int32_t *>(bytes_.data + bytes_.size))[0] = <int32_t>value
    bytes_.size += 4
    return FITS


cdef inline int put64(Bytes *bytes_, int64_t value) noexcept nogil:
    if bytes_.data == NULL or bytes_.capacity - bytes_.size < 8:
        if grow(bytes_, 8):
            return NO_MEMORY
    (<int64_t *>(bytes_.data + bytes_.size))[0] = value
    bytes_.size += 8
    return FITS


cdef inline int stretch_bits(Bytes *bits, size_t size) noexcept nogil:
    """Extend the bitmap to `size` bytes; the new bits mean "not null"."""
    if size > bits.size:
        if grow(bits, size - bits.size):
            return NO_MEMORY
        memset(bits.data + bits.size, 0xFF, size - bits.size)
        bits.size = size
    return FITS


cdef inline int put_null(Bytes *bits, int64_t index) noexcept nogil:
    if stretch_bits(bits, (index >> 3) + 1):
        return NO_MEMORY
    bits.data[index >> 3] &= ~(<uint8_t>1 << (index & 7))
    return FITS


cdef inline int put(Variable *column, const uint8_t *start, int32_t length) noexcept nogil:
    """Append a value; a length of -1 means null."""
    if length < 0:
        if put_null(&column.bits, column.count):
            return NO_MEMORY
        column.nulls += 1
    elif length > 0:
        if column.data.data == NULL or column.data.capacity - column.data.size < <size_t>length:
            if grow(&column.data, length):
                return NO_MEMORY
        memcpy(column.data.data + column.data.size, start, length)
        column.data.size += length
    column.count += 1
    return put32(&column.offsets, column.data.size)


cdef inline int begin(Variable *column) noexcept nogil:
    """Write the first offset, before the first value."""
    return put32(&column.offsets, 0) if column.offsets.size == 0 else FITS


cdef void release(Bytes *bytes_) noexcept:
    free(bytes_.data)
    bytes_.data = NULL


cdef void release_variable(Variable *column) noexcept:
    release(&column.data)
    release(&column.offsets)
    release(&column.bits)


cdef object detached(Bytes *bytes_, Recycler recycler):
    """Return the written bytes as a Memory, which now owns them. The next piece gets a similar capacity."""
    cdef Memory memory
    if grow(bytes_, 0):  # even an empty buffer needs an address
        raise MemoryError
    memory = Memory.__new__(Memory)
    memory.recycler = recycler
    memory.data = bytes_.data
    memory.size = bytes_.size
    memory.capacity = bytes_.capacity
    bytes_.capacity = bytes_.size
    bytes_.data = NULL
    bytes_.size = 0
    return memory


cdef object detached_bits(Bytes *bits, int64_t nulls, int64_t count, Recycler recycler):
    if nulls == 0:
        return None
    if stretch_bits(bits, (count + 7) >> 3):
        raise MemoryError
    return detached(bits, recycler)


cdef object detached_variable(Variable *column, object type_, Recycler recycler):
    cdef int64_t count = column.count, nulls = column.nulls
    if begin(column):
        raise MemoryError
    bits = detached_bits(&column.bits, nulls, count, recycler)
    offsets = detached(&column.offsets, recycler)
    column.count = column.nulls = 0
    return variable(type_, count, nulls, bits, offsets, detached(&column.data, recycler))


cdef void join(Variable *column, Pool *pool) noexcept:
    column.data.pool = column.offsets.pool = column.bits.pool = pool
