"""Random operations of brokers with object WALs: only operations with rights are granted, and no
invariant of the image breaks.

Most of the machine's operations are refused. A record that passes validation and breaks an
invariant in `apply` ends the test with an AssertionError.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.kernel.operation import Caller
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.nodes import WalKind, is_current
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_rpc.errors import OperationError

from services.controller.tests.ledger import Ledger, upload_body
from tests.examples import examples

BROKERS = 3
numbers = st.integers(0, BROKERS - 1)
picks = st.integers(0, 1_000)


class WalRights(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.brokers = [self.ledger.register(number, wal=WalKind.OBJECT) for number in range(BROKERS)]
        self.trims: dict[tuple[int, int], int] = {}
        for broker in self.brokers:
            self.ledger.do(broker, open_wal=wire.OpenWal())
            for stream_id in self.ledger.create_streams(broker, 2):
                self.ledger.open(broker, stream_id, 1)

    def try_to(self, caller: Caller, **kind: Any) -> bool:
        """Return whether the operation was granted. The executor refuses processes without rights,
        which other tests cover.
        """
        if not is_current(self.ledger.image, caller.node_id, caller.node_epoch):
            return False
        try:
            self.ledger.do(caller, **kind)
        except OperationError:
            return False
        return True

    def pick_stream(self, pick: int) -> StreamRow:
        rows = list(self.ledger.image[STREAMS])
        return rows[pick % len(rows)]

    def pick_log(self, pick: int) -> WalRow | None:
        rows = list(self.ledger.image[WALS])
        return rows[pick % len(rows)] if rows else None

    def name_of(self, row: WalRow | None) -> wire.WalName | None:
        return None if row is None else wire.WalName(node_id=row.node_id, wal_epoch=row.wal_epoch)

    def has_right(self, caller: Caller, stream: StreamRow, recovered: WalRow | None) -> bool:
        """The independent rule: the log of the stream's owner is open, and the caller is its owner
        or its recoverer.
        """
        log = self.ledger.image[WALS].get((stream.node_id, stream.node_epoch))
        me = (caller.node_id, caller.node_epoch)
        if log is None:
            return False
        if recovered is None:
            return (log.node_id, log.wal_epoch) == me
        return recovered == log and (log.recoverer_id, log.recoverer_epoch) == me

    # Registrations and failures

    @rule(number=numbers)
    def restarts(self, number: int) -> None:
        self.brokers[number] = self.ledger.register(number, wal=WalKind.OBJECT)

    @rule(number=numbers)
    def dies(self, number: int) -> None:
        caller = self.brokers[number]
        if is_current(self.ledger.image, caller.node_id, caller.node_epoch):
            self.ledger.fence(caller)

    @rule(number=numbers, pick=picks)
    def is_told_to_recover(self, number: int, pick: int) -> None:
        row, caller = self.pick_log(pick), self.brokers[number]
        if (
            row is not None
            and not is_current(self.ledger.image, row.node_id, row.wal_epoch)
            and is_current(self.ledger.image, caller.node_id, caller.node_epoch)
        ):
            self.ledger.assign(Caller(row.node_id, row.wal_epoch, caller.role), caller)

    # Operations of brokers

    @rule(number=numbers)
    def opens_its_log(self, number: int) -> None:
        self.try_to(self.brokers[number], open_wal=wire.OpenWal())

    @rule(number=numbers, pick=picks, rise=st.integers(0, 1))
    def opens_a_stream(self, number: int, pick: int, rise: int) -> None:
        stream, caller = self.pick_stream(pick), self.brokers[number]
        wanted = wire.OpenStream(stream_id=stream.stream_id, stream_epoch=stream.stream_epoch + rise)
        if self.try_to(caller, open_streams=wire.OpenStreams(streams=[wanted])):
            assert (caller.node_id, caller.node_epoch) in self.ledger.image[WALS]

    @rule(number=numbers, pick=picks, log=st.none() | picks, trim=st.integers(0, 5), behind=st.integers(0, 1))
    def commits(self, number: int, pick: int, log: int | None, trim: int, behind: int) -> None:
        caller, stream = self.brokers[number], self.pick_stream(pick)
        recovered = None if log is None else self.pick_log(log)
        if log is not None and recovered is None:
            return
        if not is_current(self.ledger.image, caller.node_id, caller.node_epoch):
            return
        start = max(0, stream.end_offset - behind)
        run = (stream.stream_id, stream.stream_epoch, start, stream.end_offset + 2)
        body = upload_body(self.ledger.prepare(caller), set_ranges=[run])
        body.trim_sequence = trim
        if recovered is not None:
            body.recovered.CopyFrom(wire.WalName(node_id=recovered.node_id, wal_epoch=recovered.wal_epoch))
        may = stream.open and self.has_right(caller, stream, recovered) and start == stream.end_offset
        assert self.try_to(caller, commit_upload=body) == may

    @rule(number=numbers, pick=picks, log=st.none() | picks, behind=st.integers(0, 1))
    def closes_a_stream(self, number: int, pick: int, log: int | None, behind: int) -> None:
        caller, stream = self.brokers[number], self.pick_stream(pick)
        recovered = None if log is None else self.pick_log(log)
        if log is not None and recovered is None:
            return
        state = wire.StreamState(
            stream_id=stream.stream_id,
            stream_epoch=stream.stream_epoch,
            end_offset=max(0, stream.end_offset - behind),
        )
        body = wire.CloseStreams(streams=[state], recovered=self.name_of(recovered))
        granted = self.try_to(caller, close_streams=body)
        if granted and stream.open:
            assert self.has_right(caller, stream, recovered)
            assert state.end_offset == stream.end_offset

    @rule(number=numbers, pick=picks, end=st.integers(0, 6))
    def closes_a_log(self, number: int, pick: int, end: int) -> None:
        row, caller = self.pick_log(pick), self.brokers[number]
        if row is None:
            return
        me = (caller.node_id, caller.node_epoch)
        if self.try_to(caller, close_wal=wire.CloseWal(wal=self.name_of(row), end_sequence=end)):
            assert me in ((row.node_id, row.wal_epoch), (row.recoverer_id, row.recoverer_epoch))
            assert end >= row.trim_sequence

    @rule(number=numbers)
    def asks_about_its_epoch(self, number: int) -> None:
        before = self.ledger.image.index
        self.try_to(self.brokers[number], verify_epoch=wire.VerifyEpoch())
        assert self.ledger.image.index == before

    @invariant()
    def the_image_holds(self) -> None:
        validate(self.ledger.image)

    @invariant()
    def an_open_stream_has_a_log_until_it_is_closed(self) -> None:
        for row in self.ledger.image[STREAMS]:
            assert not row.open or (row.node_id, row.node_epoch) in self.ledger.image[WALS]

    @invariant()
    def trim_points_only_rise(self) -> None:
        for row in self.ledger.image[WALS]:
            key = (row.node_id, row.wal_epoch)
            assert row.trim_sequence >= self.trims.get(key, 0)
            self.trims[key] = row.trim_sequence

    def teardown(self) -> None:
        """In any state, the remaining brokers can complete all work."""
        survivor = self.ledger.register(0, wal=WalKind.OBJECT)
        for row in list(self.ledger.image[WALS]):
            owner = Caller(row.node_id, row.wal_epoch, survivor.role)
            if is_current(self.ledger.image, row.node_id, row.wal_epoch):
                self.ledger.fence(owner)
            name = self.ledger.assign(owner, survivor)
            states = [
                wire.StreamState(
                    stream_id=each.stream_id, stream_epoch=each.stream_epoch, end_offset=each.end_offset
                )
                for each in self.ledger.image[STREAMS]
                if each.open and (each.node_id, each.node_epoch) == (row.node_id, row.wal_epoch)
            ]
            if states:
                self.ledger.do(survivor, close_streams=wire.CloseStreams(streams=states, recovered=name))
            self.ledger.do(survivor, close_wal=wire.CloseWal(wal=name, end_sequence=100))
        assert not len(self.ledger.image[WALS])
        assert not any(row.open for row in self.ledger.image[STREAMS])


TestWalRights = WalRights.TestCase
TestWalRights.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
