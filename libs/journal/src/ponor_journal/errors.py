"""Errors of the journal.

After `JournalFailedError` the process must stop; `JournalFullError` is backpressure.
"""

from __future__ import annotations

from pathlib import PurePath


class JournalError(Exception):
    """Base class of this package's errors."""


class JournalCorruptError(JournalError):
    """Data that was proven durable is damaged or missing. The journal does not open and truncates nothing.

    Attributes:
        file: the damaged file.
        position: byte offset of the damage in the file.
        rule: the violated rule of docs/formats/journal.md.
        remedy: advice for the operator.
    """

    def __init__(self, file: PurePath, position: int, rule: str, remedy: str) -> None:
        super().__init__(f"{file}: damaged at byte {position}: {rule}. {remedy}")
        self.file = file
        self.position = position
        self.rule = rule
        self.remedy = remedy


class JournalIdentityError(JournalError):
    """The directory holds the journal of another owner or of another format version."""


class JournalFailedError(JournalError):
    """A write or sync failed.

    The journal accepts nothing more; data after the last acknowledged entry is undefined.
    """


class JournalFullError(JournalError):
    """`queue_bytes_max` bytes are queued; the entry was not accepted. Retriable."""


class JournalClosedError(JournalError):
    """`close` was called."""


class EntryTooLargeError(JournalError):
    """An entry is larger than `entry_bytes_max`; the message names the settings to change."""
