"""One run of `ponor topic consume`: where it begins, what it writes, when it ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Final

from ponor_cli.errors import CommandError
from ponor_cli.records.group_member import GroupMember
from ponor_cli.records.leader_connections import LeaderConnections
from ponor_cli.records.record_text import TABLE_HEAD, RecordFormat, render
from ponor_cli.records.topic_reader import EARLIEST, LATEST, TopicReader

_START: Final = re.compile(r"earliest|latest|(?P<sign>[-@]?)(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Consumption:
    """What the user asked for. `start` None: the group's offsets, else the end."""

    start: str | None
    partitions: list[int]
    records_max: int | None
    group: str | None
    follow: bool
    form: RecordFormat
    separator: bytes | None


def consume_until_done(leaders: LeaderConnections, wanted: Consumption, out: BinaryIO) -> None:
    """Write records until there were enough, or the end is reached and not followed.

    Raises:
        CommandError: a partition or the group refuses.
        BrokenPipeError: nobody reads `out` any more.
    """
    if wanted.form is RecordFormat.TABLE:
        out.write(TABLE_HEAD)
    reader = TopicReader(leaders)
    begin = _beginning(reader, wanted)
    if wanted.group is None:
        partitions = wanted.partitions or leaders.partitions
        reader.assign(begin(partitions))
        _copy(leaders, reader, wanted, out, _Ends.of(reader, wanted, partitions), lambda: True)
        return
    _consume_as_member(leaders, reader, wanted, out, GroupMember(leaders, wanted.group), begin)


def _consume_as_member(
    leaders: LeaderConnections,
    reader: TopicReader,
    wanted: Consumption,
    out: BinaryIO,
    member: GroupMember,
    begin: Callable[[list[int]], dict[int, int]],
) -> None:
    """Rounds of joining and reading; whatever was written is committed, whatever ends it."""
    ends = _Ends(wanted.records_max, None)
    while True:
        partitions = member.join()
        committed = member.committed(partitions) if partitions else {}
        fresh = begin([partition for partition in partitions if partition not in committed])
        reader.assign({**fresh, **committed})
        if not wanted.follow:
            ends.offsets = reader.offsets(partitions, LATEST)
        ends.written = dict(reader.positions)
        try:
            is_over = _copy(leaders, reader, wanted, out, ends, member.keep_alive)
        except BaseException:
            member.commit(ends.written)
            member.leave()
            raise
        member.commit(ends.written)
        if is_over:
            member.leave()
            return


class _Ends:
    """When to stop: after so many records, or where the partitions ended when it began; and how far the output has come."""

    def __init__(self, records_left: int | None, offsets: dict[int, int] | None) -> None:
        self.records_left = records_left
        self.offsets = offsets
        self.written: dict[int, int] = {}

    @classmethod
    def of(cls, reader: TopicReader, wanted: Consumption, partitions: list[int]) -> _Ends:
        return cls(wanted.records_max, None if wanted.follow else reader.offsets(partitions, LATEST))

    def reached(self, positions: dict[int, int]) -> bool:
        if self.records_left is not None and self.records_left <= 0:
            return True
        offsets = self.offsets
        return offsets is not None and all(positions[each] >= end for each, end in offsets.items())


def _copy(
    leaders: LeaderConnections,
    reader: TopicReader,
    wanted: Consumption,
    out: BinaryIO,
    ends: _Ends,
    may_go_on: Callable[[], bool],
) -> bool:
    """Write records; True when the run is over, False when the group wants something else."""
    while not ends.reached(reader.positions):
        if not may_go_on():
            return False
        for partition, record in reader.poll():
            if ends.offsets is not None and record.offset >= ends.offsets[partition]:
                continue
            out.write(render(record, leaders.topic, partition, wanted.form, wanted.separator))
            if ends.records_left is not None:
                ends.records_left -= 1
                if ends.records_left == 0:
                    break
        out.flush()
        ends.written = dict(reader.positions)
    out.flush()
    return True


def _beginning(reader: TopicReader, wanted: Consumption) -> Callable[[list[int]], dict[int, int]]:
    """What `--offset` means for partitions."""
    start = "latest" if wanted.start is None else wanted.start
    match = _START.fullmatch(start)
    if match is None:
        raise CommandError(f"--offset {start}: write earliest, latest, N, -N (the last N) or @MILLISECONDS")
    number = int(match["number"]) if match["number"] is not None else 0

    def begin(partitions: list[int]) -> dict[int, int]:
        if start in ("earliest", "latest"):
            return reader.offsets(partitions, EARLIEST if start == "earliest" else LATEST)
        if match["sign"] == "@":
            return reader.offsets(partitions, number)
        if match["sign"] == "-":
            firsts, lasts = reader.offsets(partitions, EARLIEST), reader.offsets(partitions, LATEST)
            return {each: max(firsts[each], lasts[each] - number) for each in partitions}
        return dict.fromkeys(partitions, number)

    return begin
