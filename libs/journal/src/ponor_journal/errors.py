"""Errors of the journal. After `JournalFailedError` the owner must stop its process; `JournalFullError` is backpressure."""

from __future__ import annotations

from pathlib import PurePath


class JournalError(Exception):
    """Root of all errors of this package."""


class JournalCorruptError(JournalError):
    """Bytes that were proven to be on disk are damaged or missing: nothing may be cut off, and the journal does not open.

    Attributes:
        file: the damaged file.
        position: of the damage, in bytes from the start of the file.
        rule: which rule of docs/formats/journal.md is broken.
        remedy: what a person can do.
    """

    def __init__(self, file: PurePath, position: int, rule: str, remedy: str) -> None:
        super().__init__(f"{file}: damaged at byte {position}: {rule}. {remedy}")
        self.file = file
        self.position = position
        self.rule = rule
        self.remedy = remedy


class JournalIdentityError(JournalError):
    """The directory holds the journal of another owner, or of another format version."""


class JournalFailedError(JournalError):
    """A write or sync failed: what is on disk beyond the last acknowledged entry is unknown, and nothing more is accepted."""


class JournalFullError(JournalError):
    """`queue_bytes_max` bytes wait to become durable; the entry was not taken. Retriable."""


class JournalClosedError(JournalError):
    """`close` was called."""


class EntryTooLargeError(JournalError):
    """An entry is larger than `entry_bytes_max`; the message says what to change."""
