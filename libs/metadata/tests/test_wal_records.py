"""Logs in the store: opened by their owner, trimmed forward, recovered after the owner's epoch, closed when
no stream is open.
"""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE, WalKind
from ponor_metadata.nouns.wals import WALS, WALS_OF, WALS_RECOVERED_BY, WalRow
from ponor_runtime.identity import NodeEpoch

from libs.metadata.tests.metadata_kit import (
    GC_NODE,
    NODE_A,
    NODE_B,
    Log,
    batch_of,
    closed,
    created,
    fenced,
    opened,
    registered,
    stream,
    wal_assigned,
    wal_closed,
    wal_opened,
    wal_trimmed,
)

S1 = stream(1)
OBJECT = int(WalKind.OBJECT)


def with_logs() -> Log:
    """Two brokers with a log in the store each, and a stream that is open at the first."""
    log = Log(nodes=())
    log.commit(registered(NODE_A, wal=OBJECT), registered(NODE_B, wal=OBJECT), registered(GC_NODE, role=3))
    log.commit(wal_opened(NODE_A), wal_opened(NODE_B))
    log.commit(created(S1), opened(S1, 1))
    return log


def refused(log: Log, *records: pb.Record, match: str) -> None:
    batch = batch_of(records, log.image.index + 1, log.image.cluster_time_ms)
    with pytest.raises(AssertionError, match=match):
        log.image.replay(batch.SerializeToString())


def test_a_log_has_a_row_from_its_opening_to_its_close() -> None:
    log = with_logs()
    row = WalRow(NODE_A, NodeEpoch(1), 0, NO_NODE, NO_EPOCH, 0)
    assert list(log.image[WALS].find(WALS_OF, NODE_A)) == [row]
    log.commit(wal_trimmed(7))
    assert log.image[WALS].get((NODE_A, NodeEpoch(1))) == row._replace(trim_sequence=7)
    log.commit(closed(S1, 1), wal_closed(9))
    assert [row.node_id for row in log.image[WALS]] == [NODE_B]


def test_a_fenced_owners_log_is_assigned_to_one_broker_after_another() -> None:
    log = with_logs()
    log.commit(fenced(NODE_A))
    log.commit(wal_assigned(NODE_B))
    log.commit(registered(NODE_B, 2, wal=OBJECT), wal_assigned(NODE_B, 2, recoverer_epoch=2))
    (row,) = log.image[WALS].find(WALS_RECOVERED_BY, NODE_B)
    assert (row.node_id, row.wal_epoch, row.recoverer_epoch, row.token) == (NODE_A, 1, 2, 2)
    log.commit(wal_trimmed(4))
    log.commit(closed(S1, 1))
    log.commit(wal_closed(4))
    assert not log.image[WALS].find(WALS_RECOVERED_BY, NODE_B)


def test_an_owner_recovers_its_older_log_while_it_writes_a_new_one() -> None:
    log = with_logs()
    log.commit(registered(NODE_A, 2, wal=OBJECT), wal_assigned(NODE_A, recoverer_epoch=2))
    log.commit(wal_opened(NODE_A, 2))
    assert [row.wal_epoch for row in log.image[WALS].find(WALS_OF, NODE_A)] == [1, 2]
    log.commit(closed(S1, 1), wal_closed(0))
    assert [row.wal_epoch for row in log.image[WALS].find(WALS_OF, NODE_A)] == [2]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([wal_opened(NODE_A)], "is already open"),
        ([wal_opened(NODE_A, 2)], "stale and may not open a log"),
        ([fenced(NODE_B), wal_opened(NODE_B)], "stale and may not open a log"),
        ([registered(NODE_A, 2), wal_opened(NODE_A, 2)], "log of kind FILE"),
        ([wal_trimmed(3), wal_trimmed(3)], "may not go back"),
        ([wal_trimmed(3), wal_trimmed(2)], "may not go back"),
        ([wal_trimmed(1, wal_epoch=5)], "is not open"),
        ([wal_assigned(NODE_B)], "neither fenced nor replaced"),
        ([fenced(NODE_A), wal_assigned(NODE_B, 2)], "does not follow 0"),
        ([fenced(NODE_A), wal_assigned(NODE_B), wal_assigned(NODE_B)], "does not follow 1"),
        ([fenced(NODE_A), wal_assigned(NODE_B, recoverer_epoch=2)], "is stale"),
        ([fenced(NODE_A), wal_assigned(GC_NODE)], "not a broker"),
        ([fenced(NODE_A), wal_assigned(NODE_A)], "is stale"),
        ([wal_closed(0)], "still open"),
        ([fenced(NODE_A), wal_assigned(NODE_B), wal_closed(0)], "still open"),
        ([closed(S1, 1), wal_trimmed(5), wal_closed(4)], "below its trim point"),
        ([closed(S1, 1), wal_closed(0), wal_closed(0)], "is not open"),
    ],
)
def test_a_record_that_would_lose_or_repeat_data_breaks_an_invariant(
    records: list[pb.Record], words: str
) -> None:
    refused(with_logs(), *records, match=words)
