"""Check of the records read back against the acknowledged ones.

Rules (every acknowledged record exactly once, in order):
1. Every acknowledged record is at its acknowledged offset, byte for byte.
2. No record occurs twice, acknowledged or not.
3. Within a partition, each producer's records are in send order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.e2e.load.producers import UNKNOWN_OFFSET
from tests.e2e.load.records import make_record


@dataclass(slots=True)
class Acknowledged:
    """(producer, number) -> (partition, offset), from the producers' delivery reports."""

    places: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def add(self, producer: str, number: int, partition: int, offset: int) -> None:
        """Record one delivery report."""
        assert (producer, number) not in self.places, f"{producer}/{number} was acknowledged twice"
        self.places[producer, number] = (partition, offset)


@dataclass(slots=True)
class Seen:
    """Records received by a reader without a group, in order."""

    partitions: dict[int, list[tuple[int, str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Partition -> [(offset, producer, number, checksum)]."""

    def add(self, partition: int, offset: int, producer: str, number: int, checksum: int) -> None:
        """Record one consumed record."""
        self.partitions[partition].append((offset, producer, number, checksum))

    @property
    def count(self) -> int:
        """Total number of records."""
        return sum(map(len, self.partitions.values()))


def judge(acknowledged: Acknowledged, seen: Seen) -> None:
    """Raise AssertionError that names the first record violating a rule."""
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for partition, rows in seen.partitions.items():
        last_offset = -1
        last_number: dict[str, int] = {}
        for offset, producer, number, crc in rows:
            where = f"{producer}/{number} at partition {partition} offset {offset}"
            assert offset > last_offset, f"{where} came after offset {last_offset}"
            last_offset = offset
            assert (producer, number) not in places, (
                f"{where} occurs twice, first at {places[producer, number]}"
            )
            places[producer, number] = (partition, offset)
            assert number > last_number.get(producer, -1), (
                f"{where} is after {producer}/{last_number[producer]}"
            )
            last_number[producer] = number
            assert crc == make_record(producer, number).checksum, f"{where} has other content than was sent"
    for (producer, number), place in acknowledged.places.items():
        assert (producer, number) in places, f"{producer}/{number}, acknowledged at {place}, is lost"
        found = places[producer, number]
        is_there = found[0] == place[0] if place[1] == UNKNOWN_OFFSET else found == place
        assert is_there, f"{producer}/{number}, acknowledged at {place}, is at {found}"
