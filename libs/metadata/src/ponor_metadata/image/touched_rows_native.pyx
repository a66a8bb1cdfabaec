# cython: language_level=3, initializedcheck=False
"""The rows of one table that uncommitted batches touched.

Compiled, because an operation of the leader reads and puts a dozen rows. `overlay.OverlayTable` adds indexes and
iteration.
"""

from bisect import bisect_left, bisect_right
from collections import deque

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from ponor_metadata.image.memory_table import MemoryTable

cdef object new_tuple = tuple.__new__


@cython.final
@cython.no_gc
cdef class Change:
    """An uncommitted change of a row (None: deleted). `present`: the row before it, if the table has indexes.

    Excluded from garbage collection, because rows are in no cycles and thousands are in flight.
    """

    cdef readonly object key, row, present
    cdef readonly int64_t batch_index


cdef class TouchedRows:
    """The image's table overlaid with the touched rows, for single rows.

    `_touched` has the newest change of each row. `_changes` and `_notes` are in the order of batches, so that a
    commit visits only those of its batches. `_unnoted` are changes since the last read of an index; most are
    committed before the next one. `missing` is the last key that the image's table did not have: a key is usually
    read several times before its `put`.
    """

    cdef readonly object _base, _schema, _overlay, _image
    cdef readonly dict _touched
    cdef readonly dict _index_keys
    cdef readonly object _changes, _notes, _unnoted
    cdef readonly list _moved
    cdef object key_of, row_type, missing, missing_at
    cdef bint in_memory

    def __init__(self, base, overlay):
        schema = base.schema
        self._base, self._schema, self._overlay, self._image = base, schema, overlay, overlay.image
        self._touched = {}
        self._index_keys = {index.name: {} for index in schema.indexes}
        self._changes, self._notes, self._unnoted = deque(), deque(), deque()
        self._moved = [(index.keys, self._index_keys[index.name]) for index in schema.indexes]
        self.key_of, self.row_type = schema.key, schema.row
        self.in_memory = type(base) is MemoryTable
        self.missing = self.missing_at = None

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    @property
    def schema(self):
        return self._schema

    @property
    def touched_rows(self):
        """The number of rows that uncommitted batches changed."""
        return len(self._touched)

    cpdef object get(self, key):
        cdef PyObject *touched = PyDict_GetItem(self._touched, key)
        if touched is not NULL:
            return (<Change>touched).row
        index = self._image.index
        if self.missing is not None and key == self.missing and index == self.missing_at:
            return None
        row = self.committed(key)
        if row is None:
            self.missing, self.missing_at = key, index
        return row

    def __contains__(self, key):
        return self.get(key) is not None

    def put(self, row):
        key = self.key_of(row)
        self.change(key, row, self.get(key) if self._moved else None)

    def delete(self, key):
        present = self.get(key)
        if present is None:
            raise KeyError(key)
        self.change(key, None, present)

    def forget(self, index):
        """Forget the rows that no batch above `index` touched; None: all rows."""
        cdef int64_t through
        self.missing = None
        if index is None:
            self._touched.clear()
            self._changes.clear()
            self._notes.clear()
            self._unnoted.clear()
            for moved in self._index_keys.values():
                moved.clear()
            return
        through = index
        self.forget_changes(through)
        self.forget_notes(through)

    cdef object committed(self, key):
        """Return the image's row."""
        cdef Py_ssize_t b, i
        cdef list keys
        if not self.in_memory:
            return self._base.get(key)
        rows = self._base._rows
        b = bisect_right(rows._firsts, key)
        if b == 0:
            return None
        block = rows._blocks[b - 1]
        keys = block.keys
        i = bisect_left(keys, key)
        if i == len(keys) or keys[i] != key:
            return None
        return new_tuple(self.row_type, block._rows[i])

    cdef int change(self, key, row, present) except -1:
        """Record a change by the newest batch; `present` is the row before it."""
        cdef Change made = Change.__new__(Change)
        newest = self._overlay._newest
        made.key, made.row, made.present = key, row, present
        made.batch_index = self._overlay.index if newest is None else (<tuple>newest)[0]
        if self._moved:
            self._unnoted.append(made)
        self._touched[key] = made
        self._changes.append(made)
        return 0

    cdef int forget_changes(self, int64_t through) except -1:
        cdef Change first
        unnoted, changes = self._unnoted, self._changes
        while unnoted and (<Change>unnoted[0]).batch_index <= through:
            unnoted.popleft()
        while changes and (<Change>changes[0]).batch_index <= through:
            first = changes.popleft()
            if PyDict_GetItem(self._touched, first.key) is <PyObject *>first:  # else a later batch changed it
                del self._touched[first.key]
        return 0

    cdef int forget_notes(self, int64_t through) except -1:
        cdef tuple first
        cdef dict moved, keys
        notes = self._notes
        while notes:
            first = notes[0]
            if <int64_t>first[0] > through:
                break
            notes.popleft()
            moved = first[1]
            keys = moved.get(first[2])
            # A later batch that touches the row again has noted its previous index keys, which are the image's now.
            if keys is not None and <int64_t>keys.get(first[3], through + 1) <= through:
                del keys[first[3]]
                if not keys:
                    del moved[first[2]]
        return 0
