"""Faulty links: they behave as TCP does, and never worse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.links import DelayLaw, Links
from ponor_simulation.simulation import Simulation


class Pair:
    """A client that sends numbers and reconnects when needed, and a server that records what it receives."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.hub = self.simulation.network
        self.got: list[tuple[int, int]] = []
        """(connection, number)."""
        self.connections = 0
        self._server = self.simulation.process("server", self._serve)
        self._client = self.simulation.process("client", self._ask)

    def tell(self, trouble: Callable[[], object], *, s: float = 10.0) -> None:
        async def scenario() -> None:
            self._server.start()
            await asyncio.sleep(0.1)
            self._client.start()
            await asyncio.sleep(1.0)
            trouble()
            await asyncio.sleep(s)

        self.simulation.run(scenario())

    async def _serve(self, runtime: Runtime) -> None:
        async def take(connection: Connection) -> None:
            with suppress(ConnectionClosedError):
                while True:
                    life, number = (await connection.receive()).split(b" ")
                    self.got.append((int(life), int(number)))

        await runtime.network.listen("server:1", {"m": take})
        await asyncio.Event().wait()

    async def _ask(self, runtime: Runtime) -> None:
        number = 0
        while True:
            with suppress(ConnectionClosedError):
                connection = await runtime.network.connect("server:1", "m")
                self.connections += 1
                life = self.connections
                while True:
                    number += 1
                    await connection.send(b"%d %d" % (life, number))
                    await runtime.clock.sleep(0.01)

    def of(self, life: int) -> list[int]:
        return [number for each, number in self.got if each == life]


def test_a_lost_frame_ends_its_connection_and_nothing_behind_it_arrives() -> None:
    pair = Pair(1)
    pair.tell(lambda: pair.hub.change_links(Links(losses={("client", "server"): 0.05})))
    assert pair.hub.lost_frames > 1
    assert pair.connections > 2
    for life in range(1, pair.connections + 1):
        numbers = pair.of(life)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "in order, without a gap"


def test_an_abandoned_connection_delivers_after_its_successor_began() -> None:
    """TCP reorders only across connections."""
    pair = Pair(2)
    pair.hub.delay_law = DelayLaw(bounds_s=(0.2, 0.4))
    pair.tell(lambda: pair.hub.abandon_connections("client", "server"))
    lives = [life for life, _ in pair.got]
    assert pair.connections == 2
    assert pair.of(1) == sorted(pair.of(1))
    assert lives.count(1) > 60, "what was under way arrives"


def test_a_clogged_direction_delivers_late_and_loses_nothing() -> None:
    pair = Pair(3)
    late: list[int] = []

    def clog() -> None:
        pair.hub.change_links(Links(clogged_until_s={("client", "server"): 5.0}))
        before = len(pair.got)
        pair.simulation.loop.call_later(3.0, lambda: late.append(len(pair.got) - before))

    pair.tell(clog)
    assert late[0] < 5, "only what was under way before"
    assert pair.hub.stalled_frames > 10
    assert pair.connections == 1
    assert pair.of(1) == list(range(1, len(pair.got) + 1))


def test_one_way_is_cut_and_the_other_is_not() -> None:
    pair = Pair(4)
    pair.tell(lambda: pair.hub.change_links(Links(cuts={("server", "client"): None})))
    assert len(pair.got) > 900, "nothing comes back in this conversation, so nothing is missed"
    blind = Pair(5)
    blind.tell(lambda: blind.hub.change_links(Links(cuts={("client", "server"): None})))
    assert len(blind.got) < 120
