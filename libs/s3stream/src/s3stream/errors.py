"""Errors of s3stream. One root; each class says whether it ends the stream, the call, or the node."""

from __future__ import annotations


class S3StreamError(Exception):
    """Root of all errors of this package."""


class StreamFencedError(S3StreamError):
    """Another owner or a newer epoch took the stream: this owner may neither append nor close it."""


class StreamClosedError(S3StreamError):
    """The stream was closed by its owner."""


class StreamNotClosedError(S3StreamError):
    """The stream is still open at an older epoch; try again later."""


class StreamNotFoundError(S3StreamError):
    """No such stream: it was deleted, or never made."""


class OffsetOutOfRangeError(S3StreamError):
    """A fetch outside of [start_offset, confirmed end]."""


class AppendBackpressureError(S3StreamError):
    """The log cache and the waiting room are full; the append was not taken. Retriable."""


class StorageFailedError(S3StreamError):
    """The write-ahead log failed: nothing can be acknowledged any more and the node must stop."""


class WalFullError(S3StreamError):
    """The queue of the write-ahead log is full; the entry was not taken. Hand it over again when an entry before it is done."""


class CommitRefusedError(S3StreamError):
    """The controller refused an upload commit: the node must stop."""


class PreparedExpiredError(S3StreamError):
    """The prepared ids of an upload are too old to be committed; nothing was, and the upload starts anew under fresh ids."""


class ObjectCorruptError(S3StreamError):
    """An object's bytes break the format or a checksum; the message names object, position and rule."""


class WalCorruptError(S3StreamError):
    """The write-ahead log is damaged below its proof of sync; the message names file, position and remedy."""


class WalNotHeldError(S3StreamError):
    """The log being recovered was closed, or another process recovers it now. This recovery ends; the node continues."""


class ReadTimeoutError(S3StreamError):
    """A read did not finish before its deadline (slow store, or metadata that stays behind)."""


class SourcesDisagreeError(S3StreamError):
    """Two objects that are to be compacted together hold the same offset of a stream, or a later one under an older epoch; the message names them.
    Nothing may be replaced.
    """


class CompactionLimitError(S3StreamError):
    """A compaction does not fit into a bound; the message names the bound and the remedy. Nothing was written."""
