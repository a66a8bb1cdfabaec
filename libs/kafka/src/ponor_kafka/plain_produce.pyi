from typing import TypeAlias

PlainProduce: TypeAlias = tuple[int, int, int, str | bytes, int, int, int, int, int, int, int]
"""Values of the request: version, correlation id, timeout in ms, topic (its id from version 13), partition.
Values of its batch: position and size in the frame, number of records, producer id, producer epoch, base
sequence.

A tuple, because unpacking it is one instruction; creating an object would cost as much as the parsing."""

PlainRecords: TypeAlias = tuple[int, int, bool]
"""Largest timestamp (-1: none), smallest timestamp (-1 if a record has none; 2^63 - 1 without records),
whether a record lacks a key."""

def read_plain_produce(frame: bytearray) -> PlainProduce | None: ...
def walk_plain_batch(frame: bytearray, position: int, size_bytes: int) -> PlainRecords | None: ...
def stamped_copy(
    frame: bytearray, position: int, size_bytes: int, base_offset: int, leader_epoch: int
) -> bytes: ...
