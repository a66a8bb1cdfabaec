"""The records that clients of a simulated cluster sent and received, and the rules that they must obey.

Every value contains its producer, partition and number, so that every misplaced record is detected.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """The identity of a record; `number` counts one producer's records of one partition from 0."""

    producer: str
    partition: int
    number: int

    def encode(self, size_bytes: int) -> bytes:
        """The record's value, padded."""
        return f"{self.producer}/{self.partition}/{self.number}/".encode().ljust(size_bytes, b".")

    @classmethod
    def decode(cls, data: bytes) -> Value:
        """The inverse of `encode`."""
        producer, partition, number, _ = data.decode().split("/")
        return cls(producer, int(partition), int(number))


@dataclass(slots=True)
class ClusterHistory:
    """The history of all producers and consumers.

    Attributes:
        acknowledged: value to its acknowledged offset; None if the answer had no offset.
        seen: (partition, offset) to the value that a consumer read; it never changes.
        epochs: (partition, offset) to the leader epoch of the record.
        ends: partition to the end of the acknowledged offsets.
        sent: (producer, partition) to the number of values sent.
    """

    acknowledged: dict[Value, int | None] = field(default_factory=dict)
    seen: dict[tuple[int, int], Value] = field(default_factory=dict)
    epochs: dict[tuple[int, int], int] = field(default_factory=dict)
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    reads: int = 0

    def acknowledge(self, first: Value, count: int, base_offset: int | None) -> None:
        """Record an acknowledged batch; without an offset the batch repeats an old append."""
        if base_offset is not None:
            self.ends[first.partition] = max(self.ends.get(first.partition, 0), base_offset + count)
        for index in range(count):
            value = Value(first.producer, first.partition, first.number + index)
            assert value not in self.acknowledged, f"{value} was acknowledged twice"
            self.acknowledged[value] = None if base_offset is None else base_offset + index

    def see(self, partition: int, offset: int, value: Value, epoch: int) -> None:
        """Record and check a record that a consumer read."""
        self.reads += 1
        assert value.partition == partition, f"{value} was read from partition {partition}"
        assert value.number < self.sent.get((value.producer, partition), 0), f"{value} was never sent"
        known = self.seen.setdefault((partition, offset), value)
        assert known == value, (
            f"partition {partition} offset {offset}: the record changed from {known} to {value}"
        )
        same = self.epochs.setdefault((partition, offset), epoch)
        assert same == epoch, (
            f"partition {partition} offset {offset}: the epoch changed from {same} to {epoch}"
        )
        before = self.epochs.get((partition, offset - 1), epoch)
        assert before <= epoch, f"partition {partition} offset {offset}: epoch {epoch} follows epoch {before}"

    def check_log(self, partition: int, log: list[Value]) -> None:
        """Check a whole partition from offset 0, when everything sent is acknowledged."""
        next_number: dict[str, int] = {}
        for offset, value in enumerate(log):
            expected = next_number.get(value.producer, 0)
            assert value.number == expected, (
                f"offset {offset} has {value}, but number {expected} was expected"
            )
            next_number[value.producer] = expected + 1
            assert value in self.acknowledged, f"{value} at {offset} was never acknowledged"
            acknowledged = self.acknowledged[value]
            assert acknowledged is None or acknowledged == offset, (
                f"{value} was acknowledged at {acknowledged} and is at {offset}"
            )
        for (producer, its_partition), count in self.sent.items():
            if its_partition == partition:
                found = next_number.get(producer, 0)
                assert found == count, (
                    f"lost: {producer} sent {count} records to partition {partition}, which has {found}"
                )
