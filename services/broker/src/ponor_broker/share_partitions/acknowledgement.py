"""Acknowledgements as members send them, and the check of their form (KIP-932, KIP-1222)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.share_persister import DeliveryState

PART_OFFSETS_MAX: Final = 1_000
"""Offsets that are checked or acknowledged in one turn of the event loop: each may be a run of its own."""


class AcknowledgeType(IntEnum):
    """What a member says about a record."""

    GAP = 0
    """The offset has no record for the member."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


TARGETS: Final = {
    AcknowledgeType.GAP: DeliveryState.ARCHIVED,
    AcknowledgeType.ACCEPT: DeliveryState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: DeliveryState.AVAILABLE,
    AcknowledgeType.REJECT: DeliveryState.ARCHIVED,
}
"""The state that each type sets; RENEW sets none."""


class AcknowledgementError(Exception):
    """The acknowledgements are refused; none of them is applied."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class AcknowledgedBatch(NamedTuple):
    """Offsets (both inclusive) and either one type for all of them, or one type for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]

    def ranges(self) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """Yield consecutive offsets of the same type."""
        if len(self.types) == 1:
            yield self.first_offset, self.last_offset, AcknowledgeType(self.types[0])
            return
        offset = self.first_offset
        for kind, same in groupby(self.types):
            end = offset + sum(1 for _ in same)
            yield offset, end - 1, AcknowledgeType(kind)
            offset = end


def check_form(batches: Sequence[AcknowledgedBatch], *, has_renewals: bool) -> None:
    """Check order, offsets and types.

    Raises:
        AcknowledgementError: INVALID_REQUEST.
    """
    type_max = AcknowledgeType.RENEW if has_renewals else AcknowledgeType.REJECT
    end_offset = 0
    for first_offset, last_offset, types in batches:
        if not end_offset <= first_offset <= last_offset:
            raise _invalid(
                f"the offsets {first_offset} to {last_offset} are not in order; send ascending batches"
            )
        if len(types) != 1 and len(types) != last_offset - first_offset + 1:
            raise _invalid(
                f"the batch from offset {first_offset} to {last_offset} has {len(types)} types;"
                " send one type, or one for each offset"
            )
        if not AcknowledgeType.GAP <= min(types) <= max(types) <= type_max:
            raise _invalid(f"the batch from offset {first_offset} has types other than 0 to {int(type_max)}")
        end_offset = last_offset + 1


def in_parts(
    batches: Sequence[AcknowledgedBatch], start_offset: int
) -> Iterator[Sequence[AcknowledgedBatch]]:
    """Yield the batches, whose form was checked, in parts of at most `PART_OFFSETS_MAX` offsets; without
    offsets below `start_offset`.
    """
    part: list[AcknowledgedBatch] = []
    room = PART_OFFSETS_MAX
    for batch_offset, last_offset, types in batches:
        first = max(batch_offset, start_offset)
        while first <= last_offset:
            last = min(last_offset, first + room - 1)
            own = types if len(types) == 1 else types[first - batch_offset : last - batch_offset + 1]
            part.append(AcknowledgedBatch(first, last, own))
            room -= last - first + 1
            first = last + 1
            if not room:
                yield part
                part, room = [], PART_OFFSETS_MAX
    if part:
        yield part


def _invalid(message: str) -> AcknowledgementError:
    return AcknowledgementError(ErrorCode.INVALID_REQUEST, message)
