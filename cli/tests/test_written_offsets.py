"""Tests of the offsets that `ponor topic consume` commits: those of records that reached the output."""

from __future__ import annotations

import errno
import io
from typing import Any, cast

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from ponor_cli.records.client_library import LastWarning
from ponor_cli.records.consumer import ConsumerRun, Consumption, StartOffset
from ponor_cli.records.text import RecordFormat

PARTITION = TopicPartition("t", 0)
WANTED = Consumption("earliest", [], None, "g", follow=True, form=RecordFormat.VALUE, separator=None)


class FullDisk(io.RawIOBase):
    """Takes the bytes of one flush, and no more."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken = bytes(data)
        return len(self.taken)


class Member:
    """A consumer that only keeps what is committed."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}

    def assignment(self) -> set[TopicPartition]:
        return {PARTITION}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert (partition, offset) == (PARTITION, 0)

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.committed = dict(offsets)


def record(offset: int) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("t", 0, offset, 0, 0, None, b"%d" % offset, None, -1, 1, ())


async def test_records_that_a_full_disk_did_not_take_are_not_committed() -> None:
    member, disk = Member(), FullDisk()
    out = io.BufferedWriter(disk)
    run = ConsumerRun(cast(Any, member), WANTED, StartOffset("earliest"), out, LastWarning())
    run._seek({PARTITION: 0}, {PARTITION: 4})
    run._write({PARTITION: [record(0), record(1)]})
    with pytest.raises(OSError, match="No space left"):
        run._write({PARTITION: [record(2), record(3)]})
    await run.commit()
    assert disk.taken == b"0\n1\n"
    assert member.committed == {PARTITION: 2}
