"""Errors of s3stream. Each class states whether the call, the stream or the node must stop."""

from __future__ import annotations


class S3StreamError(Exception):
    """Base class of all errors of this package."""


class StreamFencedError(S3StreamError):
    """Another owner or a newer epoch took over the stream: this owner may neither append nor close it."""


class StreamClosedError(S3StreamError):
    """The owner closed the stream."""


class StreamNotClosedError(S3StreamError):
    """The stream is still open at an older epoch; retry later."""


class StreamNotFoundError(S3StreamError):
    """No such stream: it was deleted or never created."""


class OffsetOutOfRangeError(S3StreamError):
    """A fetch or a trim outside [start_offset, confirmed_offset]."""


class AppendBackpressureError(S3StreamError):
    """The log cache and the queue of waiting appends are full; the append was refused. Retriable."""


class StorageFailedError(S3StreamError):
    """The write-ahead log failed: the node can acknowledge nothing more and must stop."""


class WalFullError(S3StreamError):
    """The queue of the write-ahead log is full and the entry was refused. Retry when an earlier
    entry is durable.
    """


class CommitRefusedError(S3StreamError):
    """The controller refused an upload commit: the node must stop."""


class PreparedExpiredError(S3StreamError):
    """The prepared ids of an upload expired before its commit. Nothing was committed, and the
    upload restarts with new ids.
    """


class ObjectCorruptError(S3StreamError):
    """An object's bytes break the format or a checksum; the message names object, position and rule."""


class WalCorruptError(S3StreamError):
    """The write-ahead log is damaged below its proof of sync; the message names file, position and remedy."""


class WalNotHeldError(S3StreamError):
    """The log being recovered was closed, or another process recovers it now. This recovery ends; the node
    continues.
    """


class ReadTimeoutError(S3StreamError):
    """A read did not finish before its deadline: the store is slow, or the metadata lag."""


class SourcesDisagreeError(S3StreamError):
    """Two objects of one compaction contain the same offset of a stream, or a later offset under an
    older epoch. The message names them. Nothing may be replaced.
    """


class CompactionLimitError(S3StreamError):
    """A compaction exceeds a limit; the message names the limit and the remedy. Nothing was written."""
