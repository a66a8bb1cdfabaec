"""Apply records to a view: deterministic, with the same code in every process.

Apply rules do not validate, because the leader validated the request. Their asserts check what the validation
guarantees, so that a violation stops the process instead of spreading. Rules read only the view and the
record, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata.image.registry import RULES
from ponor_metadata.tables.schema import Rule, View


class UnknownRecordError(Exception):
    """The log contains a kind of record that this build does not support: the build is older than the log's
    feature level, and the process must stop.
    """


def apply_batch(view: View, batch: RecordBatch) -> None:
    """Apply all records of the next batch.

    Raises:
        UnknownRecordError: a record kind is unknown; no record of the batch was applied.
        AssertionError: the batch breaks an invariant; the view must not be used afterwards.
    """
    rules = [(_rule_of(record.WhichOneof("kind"), batch.index), record) for record in batch.records]
    require_next(view, batch)
    view.begin(batch)
    for (kind, rule), record in rules:
        rule(view, getattr(record, kind))


def apply_records(view: View, records: Iterable[Record]) -> None:
    """Apply records to a view on which `begin` was called with their batch.

    Raises:
        UnknownRecordError, AssertionError: as `apply_batch`.
    """
    for record in records:
        kind = record.WhichOneof("kind")
        if kind is None or kind not in RULES:
            raise _unknown(kind, view.index)
        RULES[kind](view, getattr(record, kind))


def require_next(view: View, batch: RecordBatch) -> None:
    """Check that a batch is the next one of the view.

    Raises:
        AssertionError: it is not the next one.
    """
    assert batch.index == view.index + 1, f"batch {batch.index} does not follow {view.index}"
    assert batch.cluster_time_ms >= view.cluster_time_ms, f"batch {batch.index}: the cluster clock went back"


def _rule_of(kind: str | None, index: int) -> tuple[str, Rule]:
    # A record of a newer kind decodes as a record without a kind, because protobuf treats its field as
    # unknown.
    if kind is None or kind not in RULES:
        raise _unknown(kind, index)
    return kind, RULES[kind]


def _unknown(kind: str | None, index: int) -> UnknownRecordError:
    return UnknownRecordError(
        f"batch {index} holds a record of kind {kind or 'unknown'!r}; run a build that knows the log's"
        " feature level"
    )
