"""The batches of a read, as a share partition uses them: which offsets contain records for members."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import BATCH_HEADER, CONTROL_BIT, LENGTH_PREFIX_BYTES, TRANSACTIONAL_BIT
from ponor_runtime.disk import Buffer

from ponor_broker.partitions.transactions.aborted_index import Aborted


class FetchedBatch(NamedTuple):
    """Offsets (both inclusive) of one batch, and its bytes. `is_gap`: it has no record for members, because
    it is a marker, belongs to an aborted transaction, or is empty.
    """

    first_offset: int
    last_offset: int
    is_gap: bool
    content: memoryview


def fetched_batches(records: Sequence[Buffer], aborted: Aborted | None) -> Iterator[FetchedBatch]:
    """Yield the batches of a read. `aborted` contains the aborted transactions of the read's offsets; it is
    None for `read_uncommitted`.

    Raises:
        KafkaWireError: the buffers do not contain whole batches.
    """
    open_aborts: set[int] = set()
    later = [(first_offset, producer_id) for producer_id, first_offset in aborted or ()]
    heapq.heapify(later)
    for buffer in records:
        view = memoryview(buffer)
        position = 0
        while position < len(view):
            if len(view) - position < BATCH_HEADER.size:
                raise KafkaWireError(f"a read ends within the header of a batch, at byte {position}")
            header = BATCH_HEADER.unpack_from(view, position)
            base_offset, length, _, _, _, attributes, last_delta, _, _, producer_id, _, _, count = header
            end = position + LENGTH_PREFIX_BYTES + length
            last_offset = base_offset + last_delta
            while later and later[0][0] <= last_offset:
                open_aborts.add(heapq.heappop(later)[1])
            is_gap = not count  # compaction leaves empty batches
            if attributes & CONTROL_BIT:
                is_gap = True
                open_aborts.discard(producer_id)
            elif attributes & TRANSACTIONAL_BIT and producer_id in open_aborts:
                is_gap = True
            yield FetchedBatch(base_offset, last_offset, is_gap, view[position:end])
            position = end
