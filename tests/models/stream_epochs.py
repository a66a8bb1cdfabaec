"""A model of stream ownership: processes that crash, return or are replaced, and a network that
repeats and delays.

Brokers and their write-ahead logs use the controller's rules
(`ponor_cluster_simulation.protocols.streams`). A record is acknowledged when it is in its process's
log. A message may arrive at any later time, repeatedly, or never, which covers lost answers and
retries. A node's next process has its disk (then the previous one is dead, because the directory is
locked) or a blank one. With a blank disk, records only on the old disk are lost by decision, but
the old process may still run.

Properties: a record that the owner acknowledged is committed at its offset, or can still be while
its disk exists. No request of a process has an effect after its node registered again, nor under an
epoch after a newer one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ponor_cluster_simulation.protocols import streams
from ponor_cluster_simulation.protocols.streams import NotAllowedError, Stream, StreamRules

NODES = "AB"


class Logged(NamedTuple):
    """A record in a write-ahead log. `entitled`: its writer owned the stream when it acknowledged it."""

    offset: int
    epoch: int
    process: int
    entitled: bool


class Process(NamedTuple):
    """A life of a broker, numbered by its place in the state; a node's newest process has the highest number.

    `holds` is the epoch of its appends, `left` the last one that it released: it appends nothing
    after it sent a close.
    """

    node: int
    disk: int
    alive: bool = True
    holds: int = -1
    left: int = -1
    appended_to: int = 0


class Open(NamedTuple):
    """A process requests the stream."""

    process: int
    epoch: int


class Commit(NamedTuple):
    """A process uploaded a record of its log."""

    process: int
    epoch: int
    offset: int
    writer: int


class Close(NamedTuple):
    """A process releases the stream."""

    process: int
    epoch: int
    end: int


class World(NamedTuple):
    """A state. `content` has the writers of committed offsets; a disk that is None was replaced."""

    stream: Stream
    content: tuple[int, ...]
    processes: tuple[Process, ...]
    disks: tuple[tuple[Logged, ...] | None, ...]
    sent: frozenset[Open | Commit | Close]
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class StreamModel:
    """Bounds, and active rules. With `records_only` late effects are allowed while no acknowledged
    record is lost.
    """

    processes_max: int = 3
    epoch_max: int = 2
    end_max: int = 2
    nodes: int = 2
    rules: StreamRules = streams.ALL_RULES
    records_only: bool = False

    def initial(self) -> Iterable[World]:
        return [World(Stream(), (), (), (), frozenset())]

    def steps(self, state: World) -> Iterator[tuple[str, World]]:
        yield from self._starts(state)
        for number, process in enumerate(state.processes):
            if process.alive:
                yield from self._work(state, number, process)
        for message in sorted(state.sent):
            yield from self._delivery(state, message)

    def violation(self, state: World) -> str | None:
        for records in state.disks:
            for record in records or ():
                if not record.entitled:
                    continue
                if record.offset < len(state.content):
                    found = state.content[record.offset]
                    if found != record.process:
                        return (
                            f"{_who(state, record.process)} acknowledged offset {record.offset}, and"
                            f" there is what {_who(state, found)} wrote"
                        )
                elif not state.stream.open or state.stream.epoch != record.epoch:
                    return (
                        f"{_who(state, record.process)} acknowledged offset {record.offset}, and no"
                        " process can commit it"
                    )
        return None if self.records_only else state.wrong

    def canonical(self, state: World) -> Hashable:
        return state

    def show(self, state: World) -> str:
        stream = state.stream
        holder = f"open at {NODES[stream.node]}" if stream.open else "closed"
        logs = " ".join(
            f"disk {number} lost"
            if records is None
            else f"disk {number}={[f'{each.offset}@{each.epoch}' for each in records]}"
            for number, records in enumerate(state.disks)
        )
        content = " ".join(_who(state, writer) for writer in state.content)
        return f"epoch {stream.epoch} {holder} committed [{content}]  {logs}".replace("'", "")

    def _starts(self, state: World) -> Iterator[tuple[str, World]]:
        if len(state.processes) == self.processes_max:
            return
        for node in range(self.nodes):
            newest = _newest(state, node)
            if newest is not None:
                before = state.processes[newest]
                dead = _with_process(state, newest, before._replace(alive=False))
                process = Process(node, before.disk)
                after = dead._replace(processes=(*dead.processes, process))
                yield f"restart {NODES[node]} as {_who(after, len(state.processes))}", after
                lost = tuple(None if number == before.disk else log for number, log in enumerate(state.disks))
                blank = Process(node, len(state.disks))
                after = state._replace(processes=(*state.processes, blank), disks=(*lost, ()))
                yield f"replace {NODES[node]} by {_who(after, len(state.processes))} on a blank disk", after
            else:
                first = Process(node, len(state.disks))
                after = state._replace(processes=(*state.processes, first), disks=(*state.disks, ()))
                yield f"start {_who(after, len(state.processes))}", after

    def _work(self, state: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        stream, who = state.stream, _who(state, number)
        log = state.disks[process.disk] or ()
        if process.holds < 0 and stream.epoch < self.epoch_max:
            yield from _sending(
                state, Open(number, stream.epoch + 1), f"ask {who} wants epoch {stream.epoch + 1}"
            )
        if (
            stream.open
            and (stream.node, stream.node_epoch) == (process.node, number)
            and max(process.holds, process.left) < stream.epoch
        ):
            holding = process._replace(holds=stream.epoch, appended_to=stream.end)
            yield f"hear {who} holds epoch {stream.epoch}", _with_process(state, number, holding)
        if (
            process.holds >= 0
            and process.appended_to < self.end_max
            and state.disks[process.disk] is not None
        ):
            yield f"append {who} acknowledges offset {process.appended_to}", _appended(state, number, process)
        for record in log:
            if record.offset >= stream.end:
                message = Commit(number, record.epoch, record.offset, record.process)
                yield from _sending(
                    state, message, f"upload {who} commits offset {record.offset} under epoch {record.epoch}"
                )
        if (
            stream.open
            and stream.node == process.node
            and number == _newest(state, process.node)
            and all(record.offset < stream.end for record in log)
        ):
            quiet = _with_process(state, number, process._replace(holds=-1, left=stream.epoch))
            close = Close(number, stream.epoch, stream.end)
            yield from _sending(quiet, close, f"give-up {who} closes epoch {stream.epoch} at {stream.end}")

    def _delivery(self, state: World, message: Open | Commit | Close) -> Iterator[tuple[str, World]]:
        node = state.processes[message.process].node
        try:
            streams.require_newest(node, message.process, _newest(state, node), self.rules)
            after = self._applied(state, message, node)
        except NotAllowedError:
            return
        if message.process != _newest(state, node):
            after = after._replace(
                wrong=f"{_who(state, message.process)} changed the stream after its node registered again"
            )
        elif after.stream.epoch < state.stream.epoch or (
            isinstance(message, Commit) and message.epoch < state.stream.epoch
        ):
            after = after._replace(
                wrong=f"something of epoch {message.epoch} took effect at epoch {state.stream.epoch}"
            )
        elif isinstance(message, Open) and message.epoch == state.stream.epoch:
            after = after._replace(wrong=f"two openings at epoch {message.epoch}")
        yield f"deliver {_describe(state, message)}", after

    def _applied(self, state: World, message: Open | Commit | Close, node: int) -> World:
        stream, rules = state.stream, self.rules
        match message:
            case Open(process, epoch):
                return state._replace(stream=streams.opened(stream, epoch, node, process, rules))
            case Commit(_, epoch, offset, writer):
                advanced = streams.committed(stream, node, offset, offset + 1, epoch, rules)
                return state._replace(
                    stream=advanced, content=(*state.content[:offset], writer, *state.content[offset + 1 :])
                )
            case Close(_, epoch, end):
                return state._replace(stream=streams.closed(stream, node, epoch, end, rules))


def _newest(state: World, node: int) -> int | None:
    return max(
        (number for number, process in enumerate(state.processes) if process.node == node), default=None
    )


def _sending(state: World, message: Open | Commit | Close, label: str) -> Iterator[tuple[str, World]]:
    if message not in state.sent:
        yield label, state._replace(sent=state.sent | {message})


def _appended(state: World, number: int, process: Process) -> World:
    stream, offset = state.stream, process.appended_to
    entitled = (
        stream.open
        and stream.epoch == process.holds
        and number == stream.node_epoch == _newest(state, process.node)
    )
    record = Logged(offset, process.holds, number, entitled)
    disks = tuple(
        (*(log or ()), record) if disk == process.disk else log for disk, log in enumerate(state.disks)
    )
    return _with_process(state, number, process._replace(appended_to=offset + 1))._replace(disks=disks)


def _with_process(state: World, number: int, process: Process) -> World:
    return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))


def _who(state: World, number: int) -> str:
    """A1 is the first process of node A."""
    node = state.processes[number].node
    earlier = sum(1 for process in state.processes[:number] if process.node == node)
    return f"{NODES[node]}{earlier + 1}"


def _describe(state: World, message: Open | Commit | Close) -> str:
    who = _who(state, message.process)
    match message:
        case Open(_, epoch):
            return f"{who}'s opening at epoch {epoch}"
        case Commit(_, epoch, offset, _):
            return f"{who}'s commit of offset {offset} under epoch {epoch}"
        case Close(_, epoch, end):
            return f"{who}'s close of epoch {epoch} at {end}"
