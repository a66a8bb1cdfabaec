"""What a Spark user may be told: one line each, that names the option (or the lease, the topic, the object) and the remedy.

What lives here: the family of errors of this member. All of them are raised before executors start where that is possible, and every one survives being
pickled, because Spark's planning workers and executors are other processes than the driver.
"""

from __future__ import annotations


class PonorSparkError(Exception):
    """Root of everything that this member raises for people. Its text is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class OptionError(PonorSparkError):
    """An option is unknown, contradicts another, or has a value that cannot be: the text begins with its name and ends with what to do."""


class ClusterUnreachableError(PonorSparkError):
    """No controller, no broker or no object store answers where the options say; or it refuses this reader."""


class TopicMissingError(PonorSparkError):
    """A topic or a partition that the options name does not exist."""


class SnapshotExpiredError(PonorSparkError):
    """The lease of a snapshot is over, and with it what it kept. Never a short result."""


class SnapshotIncompleteError(PonorSparkError):
    """The committed metadata did not become whole within the time: offsets are missing between two parts of a partition that are there."""


class DataLossError(PonorSparkError):
    """Offsets that were asked for are below the log's start, or beyond its end, and `failOnDataLoss` is true."""


class StoredDataError(PonorSparkError):
    """An object is damaged, or says something else than the metadata."""


def lease_over(lease_id: int, what: str) -> SnapshotExpiredError:
    """The error for an object that is gone, or a renewal that was refused: `what` is the rest of the sentence."""
    return SnapshotExpiredError(
        f"snapshot lease {lease_id} is over: {what}; load the DataFrame again, and set the option snapshotTtl to more than a query takes"
        f" (or keep the driver's `ponor_spark.register(spark)` alive, which renews it)"
    )
