# cython: language_level=3, initializedcheck=False
"""Applies plain records of the most frequent kinds (docs/design/metadata-image.md#applying-records), and reads
batch contents.

A record is plain if applying it only changes or appends some numbers. Every other record goes to its apply rule, in
particular every record that violates an invariant, so that only rules describe violations.
`tests/test_plain_records.py` compares both. The code works on the lists, arrays and byte arrays of `blocks` and has
no storage.
"""

from array import array as new_array
from bisect import bisect_left, bisect_right
from sys import intern

from cpython cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ponor_metadata.image.blocks import BLOCK_ROWS_MAX, BLOCK_ROWS_MIN, Block, Blocks, StructBlock, TupleBlock
from ponor_metadata.image.memory_table import Places
from ponor_metadata.image.object_table import IN_USE
from ponor_metadata.image.stream_object_table import HOLDING
from ponor_metadata.nouns.counters import COMMIT_ORDER, COUNTERS, OBJECT, STREAM
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NODES, OPERATIONS, OPERATIONS_OF
from ponor_metadata.nouns.objects import ObjectState, StreamSetObjectRow
from ponor_metadata.nouns.streams import (
    JOINED_FROM_RANGES,
    PARTITION_TAG,
    STREAMS,
    STREAMS_OF_PARTITION,
    STREAMS_OF_TOPIC,
    STREAMS_OPEN_AT,
    TOPIC_TAG,
)
from ponor_metadata.tables.ranges import PackedRanges

cdef enum:
    IN_USE_BYTES = 20       # object_table.IN_USE
    HOLDING_BYTES = 24      # stream_object_table.HOLDING
    SEQUENCE_BITS = 49
    INT32_MAX = 0x7FFFFFFF
    KINDS_MAX = 256         # numbers of Record.kind that are counted
    # Numbers of Record.kind.
    STREAM_CREATED = 20
    STREAM_OPENED = 21
    OBJECTS_PREPARED = 30
    STREAM_OBJECT_COMMITTED = 31
    STREAM_SET_OBJECT_COMMITTED = 32
    KEY_PUT = 40
    OPERATION_COMPLETED = 70

cdef Py_ssize_t WRITERS_JOINED = 3 * JOINED_FROM_RANGES
cdef Py_ssize_t ROWS_MAX = BLOCK_ROWS_MAX
cdef Py_ssize_t ROWS_MIN = BLOCK_ROWS_MIN
cdef array.array INT64 = new_array("q")
cdef object PREPARED = ObjectState.PREPARED
cdef object COMMITTED = ObjectState.COMMITTED


assert IN_USE.format == "<Iqq" and HOLDING.format == "<qqq", "compiled for other layouts: install this member again"

include "plain_records_wire.pxi"
include "plain_records_store.pxi"


def contents_of(bytes encoded):
    """See `batches.contents_of`; None if only protobuf can decode the batch."""
    cdef Bytes batch, record
    cdef uint64_t tag, value, index = 0, term = 0
    cdef int64_t counts[KINDS_MAX]
    cdef int kind
    cdef const uint8_t *begin = encoded
    memset(counts, 0, sizeof(counts))
    batch.pos, batch.end = begin, begin + len(encoded)
    while batch.pos < batch.end:
        if not varint(&batch, &tag):
            return None
        if tag == (4 << 3 | 2):
            if not delimited(&batch, &record) or not varint(&record, &tag) or tag & 7 != 2 or tag >> 3 >= KINDS_MAX:
                return None
            counts[tag >> 3] += 1
        elif tag & 7 != 0 or not varint(&batch, &value):
            return None
        elif tag == 1 << 3:
            index = value
        elif tag == 2 << 3:
            term = value
        elif tag != 3 << 3:
            return None
    return index, term, {kind: counts[kind] for kind in range(KINDS_MAX) if counts[kind]}


cdef tuple flat(dict tags):
    """Names and values in turn, sorted by name."""
    cdef list values = []
    for name in sorted(tags):
        values.append(intern(name))
        values.append(intern(tags[name]))
    return tuple(values)


cdef int stands_at(dict index, object index_key, object stream_id) except -1:
    """List a stream under a key of an index that is ordered by stream ids."""
    cdef object places = index.get(index_key)
    if places is None:
        places = index[index_key] = Places()
    places.add(stream_id, stream_id)
    return 0


cdef class PlainRecords:
    """Applies plain records to one image, and calls the rules for other records.

    It refers to the storage of the image's tables: create a new one after `MetadataImage.adopt`.
    """

    cdef dict rules
    cdef object record
    cdef Store nodes, streams, in_use, due, holdings, keys, operations, counters
    cdef object stream_set_objects
    cdef dict twins  # numbers of COMMITTED origins by the number of the same origin PREPARED
    cdef dict numbers, of_stream, of_topic, of_partition, open_at, operations_of
    cdef list origins

    def __init__(self, image, dict rules, record):
        """`rules` are (field of Record, rule of apply) by the number of the kind; `record` decodes a Record."""
        self.rules = rules
        self.record = record
        streams, operations, objects = image[STREAMS], image[OPERATIONS], image.packed_objects
        self.nodes = Store(image[NODES]._rows)
        self.streams = Store(streams._rows)
        self.open_at = streams._indexes[STREAMS_OPEN_AT.name]
        self.of_topic = streams._indexes[STREAMS_OF_TOPIC.name]
        self.of_partition = streams._indexes[STREAMS_OF_PARTITION.name]
        self.in_use = Store(objects._in_use)
        self.due = Store(objects._waiting[PREPARED]._due)
        self.twins = {}
        self.numbers = objects._numbers
        self.origins = objects._origins
        self.holdings = Store(image.packed_stream_objects._rows)
        self.of_stream = image.packed_stream_objects._of_stream
        self.stream_set_objects = image.packed_stream_set_objects
        self.keys = Store(image[KEYS]._rows)
        self.operations = Store(operations._rows)
        self.operations_of = operations._indexes[OPERATIONS_OF.name]
        self.counters = Store(image[COUNTERS]._rows)

    def apply(self, image, bytes encoded):
        """Apply the next batch to the image; return False, without a change, if protobuf has to decode it.

        Raises:
            AssertionError: the batch breaks an invariant.
        """
        cdef Bytes batch, records, record, whole, body
        cdef uint64_t tag, value, index = 0, cluster_time_ms = 0
        cdef const uint8_t *begin = encoded
        cdef const uint8_t *field
        batch.pos, batch.end = begin, begin + len(encoded)
        records.pos = NULL
        while batch.pos < batch.end:
            field = batch.pos
            if not varint(&batch, &tag):
                return False
            if tag == (4 << 3 | 2):
                if records.pos is NULL:
                    records.pos = field
                if not delimited(&batch, &record) or not self.known(record):
                    return False
            elif records.pos is not NULL or not varint(&batch, &value):
                return False
            elif tag == 1 << 3:
                index = value
            elif tag == 3 << 3:
                cluster_time_ms = value
            elif tag != 2 << 3:
                return False
        if index != <uint64_t>image.index + 1 or cluster_time_ms < <uint64_t>image.cluster_time_ms or cluster_time_ms >> 63:
            return False
        image.index = index
        image.cluster_time_ms = cluster_time_ms
        if records.pos is NULL:
            return True
        records.end = batch.end
        while records.pos < records.end:
            varint(&records, &tag)
            delimited(&records, &record)
            whole = record
            varint(&whole, &tag)
            delimited(&whole, &body)
            if not self.is_plain(tag >> 3, body, index):
                name, rule = self.rules[tag >> 3]
                rule(image, getattr(self.record.FromString(copied(record)), name))
        return True

    cdef bint known(self, Bytes record) except -1:
        """Return whether the record has exactly one message, of a known kind."""
        cdef uint64_t tag
        cdef Bytes body
        return (
            varint(&record, &tag)
            and tag & 7 == 2
            and tag < 1 << 16
            and (tag >> 3) in self.rules
            and delimited(&record, &body)
            and record.pos == record.end
        )

    cdef bint is_plain(self, uint64_t kind, Bytes body, int64_t index) except -1:
        """Apply the record if it is plain; return whether it was."""
        cdef Fields fields
        if kind == STREAM_OBJECT_COMMITTED:
            return read_fields(body, &fields, 0b1111110, 0) and self.stream_object_committed(&fields)
        if kind == OPERATION_COMPLETED:
            return read_fields(body, &fields, 0b0011110, 0b1100000) and self.operation_completed(&fields, index)
        if kind == OBJECTS_PREPARED:
            return read_fields(body, &fields, 0b1111110, 0b10000000) and self.objects_prepared(&fields)
        if kind == STREAM_SET_OBJECT_COMMITTED:
            return read_fields(body, &fields, 0b0101110, 0b0010000) and self.stream_set_object_committed(&fields)
        if kind == KEY_PUT:
            return read_fields(body, &fields, 0, 0b110) and self.key_put(&fields)
        if kind == STREAM_CREATED:
            return self.stream_created(body)
        if kind == STREAM_OPENED:
            return read_fields(body, &fields, 0b11110, 0) and self.stream_opened(&fields)
        return False

    cdef object current_node(self, int64_t node_id, int64_t node_epoch):
        """Return the row of a node that is at this epoch and not fenced, or None."""
        cdef Py_ssize_t b = self.nodes.block_of(node_id), i
        cdef object row
        if b < 0:
            return None
        i = self.nodes.place(b, node_id)
        if i < 0:
            return None
        row = rows_of(self.nodes.blocks[b])[i]
        return row if number_at(row, 1) == node_epoch and row[7] is False else None

    cdef int64_t next_value(self, str counter) except -2:
        """Return the next value of a counter; -1 if it has no row."""
        cdef tuple row
        if not self.counters.blocks:
            return -1
        for row in rows_of(self.counters.blocks[0]):
            if row[0] is counter or row[0] == counter:
                return number_at(row, 1)
        return -1

    cdef int set_next_value(self, str counter, int64_t value) except -1:
        cdef Py_ssize_t i
        cdef list keys = keys_of(self.counters.blocks[0])  # there are four counters
        for i in range(PyList_GET_SIZE(keys)):
            if keys[i] is counter or keys[i] == counter:
                rows_of(self.counters.owned(0))[i] = (counter, value)
        return 0

    cdef bint key_put(self, Fields *f) except -1:
        cdef str key = text(f.data[1])
        self.keys.put_text(key, (key, copied(f.data[2])))
        return True

    cdef bint stream_created(self, Bytes body) except -1:
        """Tags are a repeated field, which `read_fields` does not support."""
        cdef uint64_t tag, number = 0
        cdef int64_t following = self.next_value(STREAM)
        cdef Bytes entry
        cdef Fields f
        cdef dict tags = {}
        cdef object block, topic, partition
        while body.pos < body.end:
            if not varint(&body, &tag):
                return False
            if tag == 1 << 3:
                if not varint(&body, &number) or number >> 63:
                    return False
            elif tag != (2 << 3 | 2) or not delimited(&body, &entry) or not read_fields(entry, &f, 0, 0b110):
                return False
            else:
                tags[text(f.data[1])] = text(f.data[2])
        if following < 0 or <int64_t>number < following or <int64_t>number >> SEQUENCE_BITS != following >> SEQUENCE_BITS:
            return False
        block = self.streams.last_with_room()
        if block is None or keys_of(block)[-1] >= number:
            return False
        stream_id = number
        keys_of(block).append(stream_id)
        rows_of(block).append((stream_id, -1, False, 0, 0, -1, -1, (), flat(tags)))
        self.streams.add_count(1)
        self.set_next_value(STREAM, stream_id + 1)
        topic = tags.get(TOPIC_TAG)
        if topic is not None:
            topic = intern(topic)
            stands_at(self.of_topic, topic, stream_id)
            partition = tags.get(PARTITION_TAG)
            if partition is not None:
                stands_at(self.of_partition, (topic, intern(partition)), stream_id)
        return True

    cdef bint stream_opened(self, Fields *f) except -1:
        cdef int64_t stream_id = f.number[1], epoch = f.number[2], node_id = f.number[3]
        cdef Py_ssize_t b = self.streams.block_of(stream_id), i
        cdef tuple row, writers
        if b < 0 or node_id > INT32_MAX or self.current_node(node_id, f.number[4]) is None:
            return False
        i = self.streams.place(b, stream_id)
        if i < 0:
            return False
        row = rows_of(self.streams.blocks[b])[i]
        if row[2] is not False or epoch <= number_at(row, 1):
            return False
        writers = row[7]
        end = row[4]
        if writers and (end <= writers[-1] or end <= row[3]):
            return False  # the last range has no live offsets: the rule drops it
        if len(writers) >= WRITERS_JOINED:
            return False  # the rule may join ranges
        rows_of(self.streams.owned(b))[i] = (
            row[0], epoch, True, row[3], end, node_id, f.number[4], (*writers, epoch, node_id, end), row[8]
        )
        stands_at(self.open_at, node_id, row[0])
        return True

    cdef bint objects_prepared(self, Fields *f) except -1:
        cdef int64_t first = f.number[1], count = f.number[2], node_id = f.number[3], expires = f.number[5]
        cdef int64_t following = self.next_value(OBJECT), object_id
        cdef uint32_t number
        cdef char packed[IN_USE_BYTES]
        cdef object block, known
        if following < 0 or not 1 <= count <= INT32_MAX or node_id > INT32_MAX or f.number[6] > INT32_MAX:
            return False
        if first < following or first >> SEQUENCE_BITS != following >> SEQUENCE_BITS:
            return False
        if (first + count - 1) >> SEQUENCE_BITS != following >> SEQUENCE_BITS:
            return False
        if self.current_node(node_id, f.number[4]) is None or not self.ends_below(first, expires):
            return False
        known = self.numbers.get((PREPARED, text(f.data[7]), f.number[6], node_id, f.number[4]))
        if known is None:
            return False
        self.set_next_value(OBJECT, first + count)
        number = known
        memset(packed, 0, IN_USE_BYTES)
        memcpy(packed, &number, 4)
        memcpy(packed + 12, &expires, 8)
        for object_id in range(first, first + count):
            block = self.in_use.last_with_room()
            if block is None:
                self.in_use.whole.put(object_id, (known, 0, expires))
            else:
                self.in_use.append_packed(block, object_id, packed, IN_USE_BYTES)
            self.wait(expires, object_id)
        return True

    cdef bint ends_below(self, int64_t object_id, int64_t expires) except -1:
        """Whether an object with this id and expiry is the last one by id and by expiry."""
        cdef object last
        if self.in_use.count() and keys_of(self.in_use.blocks[-1])[-1] >= object_id:
            return False
        if not self.due.count():
            return True
        last = keys_of(self.due.blocks[-1])[-1]
        return number_at(last, 0) <= expires and number_at(last, 1) < object_id

    cdef int wait(self, int64_t expires, int64_t object_id) except -1:
        cdef object block = self.due.last_with_room()
        if block is None:
            self.due.put_pair(expires, object_id, (expires, object_id), (object_id,))
        else:
            keys_of(block).append((expires, object_id))
            rows_of(block).append((object_id,))
            self.due.add_count(1)
        return 0

    cdef Py_ssize_t prepared(self, int64_t object_id, Py_ssize_t *b, int64_t *expires, uint32_t *twin) except -2:
        """The position of a PREPARED object; -1 if there is none, or if the origin that it has after its
        commit has no number yet. Sets `twin` to this number.
        """
        cdef Py_ssize_t i
        cdef uint32_t number
        cdef char *data
        cdef object origin, known
        b[0] = self.in_use.block_of(object_id)
        i = -1 if b[0] < 0 else self.in_use.place(b[0], object_id)
        if i < 0:
            return -1
        data = PyByteArray_AS_STRING(data_of(self.in_use.blocks[b[0]])) + i * IN_USE_BYTES
        memcpy(&number, data, 4)
        memcpy(expires, data + 12, 8)
        known = self.twins.get(number)
        if known is None:
            origin = self.origins[number]
            if origin[0] is not PREPARED:
                return -1
            known = self.numbers.get((COMMITTED, origin[1], origin[2], origin[3], origin[4]))
            if known is None:
                return -1
            self.twins[number] = known
        twin[0] = known
        return i

    cdef int commit(self, Py_ssize_t b, Py_ssize_t i, uint32_t twin, int64_t size, int64_t at_ms, int64_t expires, int64_t object_id) except -1:
        cdef char *data = PyByteArray_AS_STRING(data_of(self.in_use.owned(b))) + i * IN_USE_BYTES
        memcpy(data, &twin, 4)
        memcpy(data + 4, &size, 8)
        memcpy(data + 12, &at_ms, 8)
        self.due.delete_pair(expires, object_id)
        return 0

    cdef int advance(self, Py_ssize_t b, Py_ssize_t i, int64_t end) except -1:
        cdef list rows = rows_of(self.streams.owned(b))
        cdef tuple row = rows[i]
        rows[i] = (row[0], row[1], row[2], row[3], end, row[5], row[6], row[7], row[8])
        return 0

    cdef Py_ssize_t ending_at(self, int64_t stream_id, int64_t end, Py_ssize_t *b) except -2:
        """The position of the stream if it is open and ends at `end`; -1 otherwise."""
        cdef Py_ssize_t i
        cdef object row
        b[0] = self.streams.block_of(stream_id)
        i = -1 if b[0] < 0 else self.streams.place(b[0], stream_id)
        if i >= 0:
            row = rows_of(self.streams.blocks[b[0]])[i]
            if <object>PyTuple_GET_ITEM(row, 2) is True and number_at(row, 4) == end:
                return i
        return -1

    cdef bint stream_object_committed(self, Fields *f) except -1:
        cdef int64_t object_id = f.number[1], size = f.number[2], stream_id = f.number[3]
        cdef int64_t start = f.number[4], end = f.number[5], expires
        cdef Py_ssize_t object_block, object_place, stream_block, stream_place
        cdef uint32_t twin
        cdef int64_t packed[3]
        cdef PyObject *ids
        cdef object block
        if size == 0 or start >= end:
            return False
        object_place = self.prepared(object_id, &object_block, &expires, &twin)
        stream_place = self.ending_at(stream_id, start, &stream_block)
        if object_place < 0 or stream_place < 0:
            return False
        self.commit(object_block, object_place, twin, size, f.number[6], expires, object_id)
        self.advance(stream_block, stream_place, end)
        block = self.holdings.last_with_room()
        if block is None or keys_of(block)[-1] >= object_id:
            self.holdings.whole.put(object_id, (stream_id, start, end))
        else:
            packed[0], packed[1], packed[2] = stream_id, start, end
            self.holdings.append_packed(block, object_id, <char *>packed, HOLDING_BYTES)
        # An object that begins at the stream's end is the last of the stream's objects.
        ids = PyDict_GetItem(self.of_stream, stream_id)
        if ids is NULL:
            self.of_stream[stream_id] = new_array("q", (object_id,))
        else:
            (<object>ids).append(object_id)
        return True

    cdef bint stream_set_object_committed(self, Fields *f) except -1:
        cdef int64_t object_id = f.number[1], size = f.number[2], node_id = f.number[3], expires
        cdef int64_t *stream_ids
        cdef int64_t *starts
        cdef int64_t *ends
        cdef Py_ssize_t object_block, object_place, b, i, n, count
        cdef uint32_t twin
        cdef int64_t order = self.next_value(COMMIT_ORDER)
        cdef object writers
        if size == 0 or order < 0 or f.data[4].pos is NULL or node_id > INT32_MAX:
            return False
        object_place = self.prepared(object_id, &object_block, &expires, &twin)
        b = self.nodes.block_of(node_id)
        if object_place < 0 or b < 0 or self.nodes.place(b, node_id) < 0:
            return False
        ranges = PackedRanges(copied(f.data[4]))
        decoded = ranges.decoded
        count = len(decoded)
        stream_ids = <int64_t *>(<array.array>decoded._stream_ids).data.as_longlongs
        starts = <int64_t *>(<array.array>decoded._starts).data.as_longlongs
        ends = <int64_t *>(<array.array>decoded._ends).data.as_longlongs
        if count == 0:
            return False
        for n in range(count):
            i = self.ending_at(stream_ids[n], starts[n], &b)
            if i < 0 or (n and stream_ids[n] == stream_ids[n - 1]):
                return False
            writers = rows_of(self.streams.blocks[b])[i][7]
            if <int64_t>writers[-2] != node_id:
                return False
        for n in range(count):
            b = self.streams.block_of(stream_ids[n])
            self.advance(b, self.streams.place(b, stream_ids[n]), ends[n])
        self.commit(object_block, object_place, twin, size, f.number[5], expires, object_id)
        self.set_next_value(COMMIT_ORDER, order + 1)
        self.stream_set_objects.put(StreamSetObjectRow(object_id, node_id, order, ranges))
        return True

    cdef bint operation_completed(self, Fields *f, int64_t index) except -1:
        cdef int64_t node_id = f.number[1], request_id = f.number[4], known_floor, floor
        cdef object row, places
        cdef list orders, keys
        cdef Py_ssize_t below = 0, b
        cdef tuple key
        if node_id > INT32_MAX:
            return False
        row = self.current_node(node_id, f.number[2])
        if row is None or row[8] >> 63:
            return False
        known_floor = number_at(row, 8)
        floor = f.number[3] if f.number[3] > known_floor else known_floor
        places = self.operations_of.get(node_id)
        if request_id < floor or places is None:
            return False
        orders, keys = places.orders, places.keys
        if orders[PyList_GET_SIZE(orders) - 1] >= request_id:
            return False
        if floor > known_floor:
            b = self.nodes.block_of(node_id)
            rows_of(self.nodes.owned(b))[self.nodes.place(b, node_id)] = (*row[:8], floor, *row[9:])
            while below < PyList_GET_SIZE(orders) and <int64_t>orders[below] < floor:
                self.operations.delete_pair(node_id, orders[below])
                below += 1
            if below:
                del orders[:below]
                del keys[:below]
        key = (node_id, request_id)
        self.operations.put_pair(node_id, request_id, key, (node_id, request_id, copied(f.data[5]), copied(f.data[6]), index))
        orders.append(request_id)
        keys.append(key)
        return True
