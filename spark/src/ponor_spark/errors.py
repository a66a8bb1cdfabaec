"""Errors for Spark users: one line each, which names the option (or the lease, the topic, the object) and the
remedy.

They are raised before executors start where possible. All of them can be pickled, because Spark's planning
workers and executors are separate processes.
"""

from __future__ import annotations


class PonorSparkError(Exception):
    """Base class of this member's user errors. The message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class OptionError(PonorSparkError):
    """An option is unknown, contradicts another, or has an invalid value: the message begins with its name
    and ends with the remedy.
    """


class ClusterUnreachableError(PonorSparkError):
    """No controller, broker or object store answers at the address in the options, or it refuses this
    reader.
    """


class TopicMissingError(PonorSparkError):
    """A topic or a partition named in the options does not exist."""


class SnapshotExpiredError(PonorSparkError):
    """The lease of a snapshot has ended, so its objects may be deleted.

    Raised instead of returning fewer rows.
    """


class SnapshotIncompleteError(PonorSparkError):
    """The committed metadata had a gap for too long: offsets are missing between two committed parts of a
    partition.
    """


class DataLossError(PonorSparkError):
    """Requested offsets are below the log's start or beyond its end, and `failOnDataLoss` is true."""


class StoredDataError(PonorSparkError):
    """An object is damaged or contradicts the metadata."""


def lease_over(lease_id: int, what: str) -> SnapshotExpiredError:
    """Return the error for a missing object or a refused renewal; `what` completes the sentence."""
    return SnapshotExpiredError(
        f"snapshot lease {lease_id} is over: {what}; load the DataFrame again, and set the option"
        " snapshotTtl to more than the duration of a query"
        " (a driver that called `ponor_spark.register(spark)` renews its leases as long as it runs)"
    )
