"""Compares two runs of a story field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.oracle.exchange import Told
from tests.oracle.plain import identity

SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one answer. `path` is like `topics[0].partitions[1].error_code`; "" is the whole
    answer.
    """

    story: str
    number: int
    note: str
    api: str
    version: int
    path: str
    kafka: Any
    ponor: Any

    def __str__(self) -> str:
        where = f"{self.story} #{self.number} {self.api} v{self.version} ({self.note})"
        return f"{where}: {self.path or 'answer'}: Kafka {_short(self.kafka)}, Ponor {_short(self.ponor)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


class StaleRecordingError(AssertionError):
    """The story's requests differ from the recorded ones."""


def differences(recorded: Told, told: Told) -> list[Difference]:
    """Return the differences between Kafka's answers and ours. Raises StaleRecordingError if the
    requests differ.
    """
    found: list[Difference] = []
    for number, (theirs, ours) in enumerate(zip(recorded.exchanges, told.exchanges, strict=False)):
        if (theirs.note, theirs.api, theirs.version) != (ours.note, ours.api, ours.version):
            raise StaleRecordingError(
                f"{recorded.story} #{number} was recorded as {theirs.api} v{theirs.version} ({theirs.note}),"
                " and the story now asks "
                f"{ours.api} v{ours.version} ({ours.note}); record it again: make oracle RECORD=1"
            )
        if theirs.request_digest != ours.request_digest and not found:
            raise StaleRecordingError(
                f"{recorded.story} #{number} ({theirs.note}) asks something else than the recording: make"
                " oracle RECORD=1"
            )
        place = (recorded.story, number, theirs.note, theirs.api, theirs.version)
        found += [
            Difference(*place, path, kafka, ponor)
            for path, kafka, ponor in _walk(theirs.answer, ours.answer, "")
        ]
    if told.broke_off is not None or len(recorded.exchanges) != len(told.exchanges):
        kafka = f"{len(recorded.exchanges)} exchanges"
        ponor = f"{len(told.exchanges)} exchanges, then: {told.broke_off}"
        found.append(Difference(recorded.story, len(told.exchanges), "the end", "-", -1, "", kafka, ponor))
    return found


def _walk(theirs: Any, ours: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        for key in theirs:
            yield from _walk(theirs[key], ours[key], key if path in {"", "body"} else f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and _is_map(theirs) and _is_map(ours):
        their_entries, our_entries = _by_identity(theirs), _by_identity(ours)
        for key in sorted(their_entries.keys() | our_entries.keys()):
            yield from _walk(their_entries.get(key), our_entries.get(key), f"{path}[{key}]")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (their_entry, our_entry) in enumerate(zip(theirs, ours, strict=True)):
            yield from _walk(their_entry, our_entry, f"{path}[{index}]")
    elif theirs != ours:
        yield path, theirs, ours


def _is_map(entries: list[Any]) -> bool:
    """Whether all entries have distinct identifying fields."""
    return all(isinstance(entry, dict) for entry in entries) and len(_by_identity(entries)) == len(entries)


def _by_identity(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {identity(entry): entry for entry in entries}
