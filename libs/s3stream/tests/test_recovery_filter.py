"""The recovery filter accepts every log that a node could have written, and no log that lost a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.errors import WalCorruptError
from s3stream.ports import StreamState
from s3stream.records import StreamRecord
from s3stream.recovery import RecoveryFilter, Verdict

EPOCH = StreamEpoch(3)


@st.composite
def logs(draw: st.DrawFn) -> list[StreamRecord]:
    """Generate records of a few streams, each stream without gaps."""
    ends = [draw(st.integers(0, 5)) for _ in range(3)]
    log: list[StreamRecord] = []
    for stream, count in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=30)):
        log.append(StreamRecord(StreamId(stream), EPOCH, ends[stream], count, -1, b""))
        ends[stream] += count
    return log


def boundaries(log: list[StreamRecord], stream: int) -> list[int]:
    own = [record for record in log if record.stream_id == stream]
    return [own[0].base_offset, *[record.end_offset for record in own]] if own else [0]


def states(ends: dict[int, int]) -> list[StreamState]:
    return [StreamState(StreamId(stream), EPOCH, 0, end) for stream, end in ends.items()]


@given(logs(), st.data())
def test_uploads_exactly_the_records_after_the_committed_end(
    log: list[StreamRecord], data: st.DataObject
) -> None:
    ends = {stream: data.draw(st.sampled_from(boundaries(log, stream))) for stream in (0, 1)}
    judge = RecoveryFilter(states(ends))
    verdicts = [judge.judge(record) for record in log]
    for record, verdict in zip(log, verdicts, strict=True):
        if record.stream_id not in ends:
            assert verdict is Verdict.NOT_OWNED
        else:
            committed = record.end_offset <= ends[record.stream_id]
            assert verdict is (Verdict.COMMITTED if committed else Verdict.UPLOAD)
    for state in judge.closed_states():
        assert state.end_offset == max(boundaries(log, state.stream_id)[-1], ends[state.stream_id])
    # Committing and crashing again uploads nothing twice.
    again = RecoveryFilter(judge.closed_states())
    assert all(again.judge(record) is not Verdict.UPLOAD for record in log)


@given(logs(), st.data())
def test_a_lost_record_is_an_error_unless_it_was_committed_or_the_last(
    log: list[StreamRecord], data: st.DataObject
) -> None:
    own = [record for record in log if record.stream_id == 0]
    if len(own) < 2:
        return
    lost = data.draw(st.sampled_from(own[:-1]))
    judge = RecoveryFilter(states({0: own[0].base_offset}))
    with pytest.raises(WalCorruptError, match="stream 0: offsets"):
        for record in log:
            if record is not lost:
                judge.judge(record)


def test_a_record_of_a_newer_epoch_after_the_end_is_an_error() -> None:
    judge = RecoveryFilter(states({0: 10}))
    below = StreamRecord(StreamId(0), StreamEpoch(EPOCH + 1), 5, 5, -1, b"")
    assert judge.judge(below) is Verdict.COMMITTED
    with pytest.raises(WalCorruptError, match="epoch"):
        judge.judge(StreamRecord(StreamId(0), StreamEpoch(EPOCH + 1), 10, 1, -1, b""))


@given(logs(), st.data())
def test_records_of_older_epochs_are_ignored(log: list[StreamRecord], data: st.DataObject) -> None:
    """At any offset: acknowledged records of those epochs were uploaded, or their loss was accepted."""
    ends = {stream: boundaries(log, stream)[0] for stream in (0, 1)}
    judge, alone = RecoveryFilter(states(ends)), RecoveryFilter(states(ends))
    for record in log:
        if data.draw(st.booleans()):
            old = StreamRecord(
                StreamId(data.draw(st.integers(0, 1))),
                StreamEpoch(EPOCH - 1),
                data.draw(st.integers(0, 50)),
                2,
                -1,
                b"",
            )
            assert judge.judge(old) is Verdict.OLDER_EPOCH
        assert judge.judge(record) is alone.judge(record)
    assert judge.closed_states() == alone.closed_states()
