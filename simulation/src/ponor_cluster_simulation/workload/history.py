"""What the clients of a simulated cluster know, and what must hold of it.

What lives here: memory and its rules, without time and without a wire. Every value names its producer, partition and number, so that one look tells where
it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """A record's identity: `number` counts one producer's records of one partition from 0, as its sequence does."""

    producer: str
    partition: int
    number: int

    def encode(self, size_bytes: int) -> bytes:
        """The record's value, padded."""
        return f"{self.producer}/{self.partition}/{self.number}/".encode().ljust(size_bytes, b".")

    @classmethod
    def decode(cls, data: bytes) -> Value:
        """The other way."""
        producer, partition, number, _ = data.decode().split("/")
        return cls(producer, int(partition), int(number))


@dataclass(slots=True)
class ClusterHistory:
    """All clients write here.

    Attributes:
        acknowledged: value to the offset at which the broker said it is; None where it only said that it has it.
        seen: (partition, offset) to the value that some consumer read there; what was read once stays.
        epochs: the same to the leader epoch under which it was written.
        ends: partition to the end of what was acknowledged with an offset.
        sent: (producer, partition) to how many values were sent, acknowledged or not.
    """

    acknowledged: dict[Value, int | None] = field(default_factory=dict)
    seen: dict[tuple[int, int], Value] = field(default_factory=dict)
    epochs: dict[tuple[int, int], int] = field(default_factory=dict)
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    reads: int = 0

    def acknowledge(self, first: Value, count: int, base_offset: int | None) -> None:
        """A batch was acknowledged; without an offset as a repeat of what was appended long before."""
        if base_offset is not None:
            self.ends[first.partition] = max(self.ends.get(first.partition, 0), base_offset + count)
        for index in range(count):
            value = Value(first.producer, first.partition, first.number + index)
            assert value not in self.acknowledged, f"{value} was acknowledged twice"
            self.acknowledged[value] = None if base_offset is None else base_offset + index

    def see(self, partition: int, offset: int, value: Value, epoch: int) -> None:
        """A consumer read a record."""
        self.reads += 1
        assert value.partition == partition, f"{value} is in partition {partition}"
        assert value.number < self.sent.get((value.producer, partition), 0), f"{value} was never sent"
        known = self.seen.setdefault((partition, offset), value)
        assert known == value, f"partition {partition} offset {offset} was {known} and is {value}"
        same = self.epochs.setdefault((partition, offset), epoch)
        assert same == epoch, f"partition {partition} offset {offset} was of epoch {same} and is of {epoch}"
        before = self.epochs.get((partition, offset - 1), epoch)
        assert before <= epoch, f"partition {partition} offset {offset}: epoch {epoch} after {before}"

    def check_log(self, partition: int, log: list[Value]) -> None:
        """The whole of a partition, from offset 0 to its end, when everything that was sent is acknowledged."""
        next_number: dict[str, int] = {}
        for offset, value in enumerate(log):
            expected = next_number.get(value.producer, 0)
            assert value.number == expected, f"offset {offset} has {value}, expected was number {expected}"
            next_number[value.producer] = expected + 1
            assert value in self.acknowledged, f"{value} at {offset} was never acknowledged"
            told = self.acknowledged[value]
            assert told is None or told == offset, f"{value} was acknowledged at {told} and is at {offset}"
        for (producer, its_partition), count in self.sent.items():
            if its_partition == partition:
                found = next_number.get(producer, 0)
                assert found == count, (
                    f"lost: {producer} sent {count} records to {partition}, {found} are there"
                )
