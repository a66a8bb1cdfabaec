"""Errors that prevent the start of a controller or stop it."""

from __future__ import annotations

from pathlib import PurePath


class RecordLogCorruptError(Exception):
    """The log or a snapshot is damaged. The process must not start: it might vote or serve without entries
    that it had acknowledged.
    """

    def __init__(self, file: PurePath | str, position: int, rule: str, remedy: str) -> None:
        super().__init__(f"{file}, position {position}: {rule}; {remedy}")
        self.file = str(file)
        self.position = position
        self.rule = rule
        self.remedy = remedy


class DirectoryInUseError(Exception):
    """Another process has locked the data directory."""


class QuorumLivesError(Exception):
    """A forced recovery is refused while a majority of the controllers is running; the message names them."""


class WrongDirectoryError(Exception):
    """The data directory belongs to another cluster."""


RESTORE_REMEDY = (
    "if other voters have the log, replace this controller: start it with an empty directory and add it to"
    " the quorum. Do not use a copy of this directory: it lacks all entries that were written after the copy"
    " was made"
)
