"""Whatever happens, a client that only hears of changes knows what a client that asks for everything knows
(KIP-227).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_kafka.errors import ErrorCode

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, Key, base_offsets

PARTITIONS = 4
KEYS = [("t", index) for index in range(PARTITIONS)]
Told = tuple[int, int, int]
"""Error code, high watermark, log start offset."""


@dataclass
class SessionClient:
    """Kafka's client side of a session: sends changes and applies the answers."""

    rig: FetchRig
    session_id: int = 0
    epoch: int = 0
    wanted: dict[Key, int] = field(default_factory=dict)  # offsets
    sent: dict[Key, int] = field(default_factory=dict)  # what the broker remembers of that
    view: dict[Key, Told] = field(default_factory=dict)
    received: dict[Key, list[int]] = field(default_factory=dict)

    async def fetch(self, max_bytes: int) -> None:
        """One fetch, and what follows from its answer."""
        is_full = self.epoch == 0
        changed = [(k, offset) for k, offset in self.wanted.items() if is_full or self.sent.get(k) != offset]
        forgotten = [] if is_full else [key for key in self.sent if key not in self.wanted]
        if is_full:
            self.view.clear()
        response = await self.rig.fetch(
            changed, session_id=self.session_id, epoch=self.epoch, forgotten=forgotten, max_bytes=max_bytes
        )
        if response.error_code in {
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        }:
            self.session_id = self.epoch = 0
            return
        assert response.error_code == 0
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if self.session_id else 0
        self.sent = dict(self.wanted)
        for key in [key for key in self.view if key not in self.wanted]:
            del self.view[key]
        for key, one in self.rig.answers(response).items():
            assert key in self.wanted, f"{key} was forgotten"
            self.view[key] = (one.error_code, one.high_watermark, one.log_start_offset)
            for offset in base_offsets(one):
                assert offset == self.wanted[key], "batches of one record come in order, without a hole"
                self.received.setdefault(key, []).append(offset)
                self.wanted[key] += 1


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("fetch"), st.sampled_from([1, 100, 250, 1 << 20])),
    st.tuples(st.just("want"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("forget"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("move away"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("move back"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("evict"), st.just(0)),
    st.tuples(st.just("wait and cancel"), st.just(0)),
)


class Story:
    """The world of one example."""

    def __init__(self, rig: FetchRig) -> None:
        self.rig = rig
        self.client = SessionClient(rig)
        self.away: dict[int, None] = {}
        self.leader_epoch = 0

    async def act(self, action: str, number: int) -> None:
        """Do one thing."""
        key = ("t", number)
        match action:
            case "append" if number not in self.away:
                await self.rig.append("t", number)
            case "fetch":
                await self.client.fetch(number)
            case "want":
                self.client.wanted.setdefault(key, len(self.client.received.get(key, [])))
            case "forget":
                self.client.wanted.pop(key, None)
            case "move away" if number not in self.away:
                await self._lead(number, OTHER_NODE)
                self.away[number] = None
            case "move back" if number in self.away:
                await self._lead(number, NODE)
                del self.away[number]
            case "evict":
                if (session := self.rig.sessions.find(self.client.session_id)) is not None:
                    self.rig.sessions.remove(session)
            case "wait and cancel" if self.client.epoch > 0:
                waiting = self.rig.start(
                    session_id=self.client.session_id,
                    epoch=self.client.epoch,
                    max_wait_ms=60_000,
                    min_bytes=1 << 20,
                )
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    async def _lead(self, number: int, node: object) -> None:
        self.leader_epoch += 1
        await self.rig.move("t", number, node, self.leader_epoch)  # type: ignore[arg-type]

    async def check(self) -> None:
        """After enough fetches the client knows and has everything."""
        for _ in range(4 + 3 * PARTITIONS):
            await self.client.fetch(1 << 20)
        full = self.rig.answers(await self.rig.fetch(list(self.client.wanted.items())))
        assert {
            key: (one.error_code, one.high_watermark, one.log_start_offset) for key, one in full.items()
        } == (self.client.view)
        for key, offset in self.client.wanted.items():
            if key[1] not in self.away:
                assert offset == self.rig.partition(*key).high_watermark, f"{key} was read to its end"


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
async def test_the_clients_view_equals_the_full_state(actions: list[tuple[str, int]]) -> None:
    async with FetchRig() as rig:
        await rig.create("t", PARTITIONS)
        story = Story(rig)
        for action, number in actions:
            await story.act(action, number)
        await story.check()
