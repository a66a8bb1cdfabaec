# Search in blocks and changes of single rows. Part of plain_records_native; `blocks` splits, joins and copies blocks.

# Slots of blocks and maps are read by their offsets, without a look-up in the class.

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset


cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member


cdef Py_ssize_t slot_of(object kind, str name) except -1:
    """Return the offset of a slot in objects of a class."""
    descriptor = kind.__dict__[name]
    assert type(descriptor) is type(Block.__dict__["keys"]), f"{kind.__name__}.{name} is no slot"
    return (<PyMemberDescrObject *>descriptor).d_member.offset


cdef Py_ssize_t KEYS_SLOT = slot_of(Block, "keys")
cdef Py_ssize_t GENERATION_SLOT = slot_of(Block, "generation")
cdef Py_ssize_t ROWS_SLOT = slot_of(TupleBlock, "_rows")
cdef Py_ssize_t DATA_SLOT = slot_of(StructBlock, "_data")
cdef Py_ssize_t COUNT_SLOT = slot_of(Blocks, "_count")
cdef Py_ssize_t MAP_GENERATION_SLOT = slot_of(Blocks, "_generation")


cdef inline object in_slot(object holder, Py_ssize_t slot):
    return <object>(<PyObject **>(<char *><PyObject *>holder + slot))[0]


cdef inline object keys_of(object block):
    return in_slot(block, KEYS_SLOT)


cdef inline list rows_of(object block):
    """Rows of a block of tuples."""
    return <list>in_slot(block, ROWS_SLOT)


cdef inline bytearray data_of(object block):
    """Bytes of a block of packed rows."""
    return <bytearray>in_slot(block, DATA_SLOT)


cdef inline int64_t number_at(object values, Py_ssize_t place) except? -1:
    return <int64_t><object>PyTuple_GET_ITEM(values, place)


cdef inline bint is_below(object pair, int64_t left, int64_t right, bint or_same) except -1:
    cdef int64_t other = number_at(pair, 0)
    if other != left:
        return other < left
    other = number_at(pair, 1)
    return other < right or (or_same and other == right)


cdef class Store:
    """A map of `blocks`, with its lists of blocks and first keys."""

    cdef object whole
    cdef list blocks
    cdef list firsts

    def __init__(self, whole):
        self.whole = whole
        self.blocks = whole._blocks
        self.firsts = whole._firsts

    cdef inline Py_ssize_t count(self) except -1:
        """Return the number of rows."""
        return <Py_ssize_t>in_slot(self.whole, COUNT_SLOT)

    cdef inline int add_count(self, Py_ssize_t change) except -1:
        cdef PyObject **slot = <PyObject **>(<char *><PyObject *>self.whole + COUNT_SLOT)
        cdef PyObject *before = slot[0]
        cdef object after = <object>before + change
        Py_INCREF(after)
        slot[0] = <PyObject *>after
        Py_DECREF(<object>before)
        return 0

    cdef Py_ssize_t block_of(self, int64_t key) except -2:
        """Return the block for an integer key; -1 if the key is below all blocks."""
        cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(self.firsts), middle
        while low < high:
            middle = (low + high) >> 1
            if key < <int64_t><object>PyList_GET_ITEM(self.firsts, middle):
                high = middle
            else:
                low = middle + 1
        return low - 1

    cdef Py_ssize_t place(self, Py_ssize_t b, int64_t key) except -2:
        """Return the position of an integer key in the block; -1 if it is not in it."""
        cdef object keys = keys_of(self.blocks[b])
        cdef Py_ssize_t low = 0, high, middle, count
        cdef int64_t *packed
        if isinstance(keys, list):
            count = high = PyList_GET_SIZE(keys)
            while low < high:
                middle = (low + high) >> 1
                if <int64_t><object>PyList_GET_ITEM(keys, middle) < key:
                    low = middle + 1
                else:
                    high = middle
            if low < count and <int64_t><object>PyList_GET_ITEM(keys, low) == key:
                return low
            return -1
        count = high = len(<array.array>keys)
        packed = <int64_t *>(<array.array>keys).data.as_longlongs
        while low < high:
            middle = (low + high) >> 1
            if packed[middle] < key:
                low = middle + 1
            else:
                high = middle
        return low if low < count and packed[low] == key else -1

    cdef object owned(self, Py_ssize_t b):
        """Return a block for a change."""
        cdef object block = self.blocks[b], generation, newest
        generation, newest = in_slot(block, GENERATION_SLOT), in_slot(self.whole, MAP_GENERATION_SLOT)
        if generation is not newest and generation != newest:
            block = self.whole._own(b)
        return block

    cdef Py_ssize_t block_of_pair(self, int64_t left, int64_t right) except -2:
        """Return the block for a key of two integers; -1 if the key is below all blocks."""
        cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(self.firsts), middle
        while low < high:
            middle = (low + high) >> 1
            if is_below(<object>PyList_GET_ITEM(self.firsts, middle), left, right, True):
                low = middle + 1
            else:
                high = middle
        return low - 1

    cdef Py_ssize_t place_of_pair(self, Py_ssize_t b, int64_t left, int64_t right) except -2:
        """Return the position of a key of two integers in the block, or its insertion point."""
        cdef list keys = keys_of(self.blocks[b])
        cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(keys), middle
        while low < high:
            middle = (low + high) >> 1
            if is_below(<object>PyList_GET_ITEM(keys, middle), left, right, False):
                low = middle + 1
            else:
                high = middle
        return low

    cdef int put_pair(self, int64_t left, int64_t right, tuple key, tuple row) except -1:
        """Insert a row under a new key of two integers."""
        cdef Py_ssize_t b = self.block_of_pair(left, right), i
        cdef object block
        if b < 0 or PyList_GET_SIZE(keys_of(self.blocks[b])) >= ROWS_MAX:
            self.whole.put(key, row)
            return 0
        if PyList_GET_SIZE(keys_of(self.blocks[b])) == 0:
            self.firsts[b] = key
        i = self.place_of_pair(b, left, right)
        block = self.owned(b)
        keys_of(block).insert(i, key)
        rows_of(block).insert(i, row)
        self.add_count(1)
        return 0

    cdef int put_text(self, str key, tuple row) except -1:
        """Insert or replace a row under a string key."""
        cdef Py_ssize_t b = bisect_right(self.firsts, key), i, count
        cdef object block
        cdef list keys, rows
        b = b - 1 if b else 0
        if PyList_GET_SIZE(self.blocks) == 0:
            self.whole.put(key, row)
            return 0
        keys = keys_of(self.blocks[b])
        count = PyList_GET_SIZE(keys)
        i = bisect_left(keys, key)
        if i < count and keys[i] == key:
            rows_of(self.owned(b))[i] = row
            return 0
        if count >= ROWS_MAX:
            self.whole.put(key, row)
            return 0
        block = self.owned(b)
        keys, rows = keys_of(block), rows_of(block)
        keys.insert(i, key)
        rows.insert(i, row)
        if i == 0:
            self.firsts[b] = key
        self.add_count(1)
        return 0

    cdef int delete_pair(self, int64_t left, int64_t right) except -1:
        """Remove the row under a key of two integers, which must exist."""
        cdef Py_ssize_t b = self.block_of_pair(left, right), i
        cdef object block
        cdef Py_ssize_t rows = 0 if b < 0 else PyList_GET_SIZE(keys_of(self.blocks[b]))
        if rows == 0 or (rows <= ROWS_MIN and PyList_GET_SIZE(self.blocks) > 1):
            self.whole.delete((left, right))  # a block may be removed or joined
            return 0
        i = self.place_of_pair(b, left, right)
        if i == rows or is_below((left, right), number_at(keys_of(self.blocks[b])[i], 0), number_at(keys_of(self.blocks[b])[i], 1), False):
            raise KeyError((left, right))
        block = self.owned(b)
        del keys_of(block)[i]
        del rows_of(block)[i]
        if i == 0 and rows > 1:
            self.firsts[b] = keys_of(block)[0]
        self.add_count(-1)
        return 0

    cdef int append_packed(self, object block, int64_t key, const char *row, Py_ssize_t row_bytes) except -1:
        """Append a row of fixed width to a block with room."""
        cdef bytearray data = data_of(block)
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(data)
        keys_of(block).append(key)
        PyByteArray_Resize(data, size + row_bytes)
        memcpy(PyByteArray_AS_STRING(data) + size, row, row_bytes)
        self.add_count(1)
        return 0

    cdef object last_with_room(self):
        """Return the last block for an append; None if there is none, or it is full or empty."""
        cdef Py_ssize_t b = PyList_GET_SIZE(self.blocks) - 1
        if b < 0 or not 0 < len(keys_of(self.blocks[b])) < ROWS_MAX:
            return None
        return self.owned(b)
