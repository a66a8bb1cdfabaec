"""A model of moves and failovers of one partition.

Brokers with write-ahead logs in the store use the controller's rules
(`ponor_cluster_simulation.protocols`). A broker is a sequence of processes. A fenced or replaced
one continues as a zombie, and its last put may arrive at any time. Requests arrive at any later
time and repeatedly. There are no clocks: a timeout may fire at any time. A process may be stuck: it
is alive and does nothing, so no other process suspects it.

A move: begun, sealed by its source, tail uploaded, streams closed, elected. A failover: fenced,
assigned, recovered (fence into the log, commit, close), closed.

Properties: an acknowledged record is in the committed log at its offset, or in a log that will be
recovered. Two processes never serve at one epoch. Where no step is possible without a fault, no
move and no log of a dead process is left, and the partition is served.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ponor_cluster_simulation.protocols import partitions, streams
from ponor_cluster_simulation.protocols.partitions import Partition
from ponor_cluster_simulation.protocols.streams import NO_NODE, NotAllowedError, Stream

FAULTS_AND_WISHES = frozenset({"begin", "cancel", "append", "suspect", "restart", "stick", "forget"})
"""Optional actions: without them the remaining work must still end."""


class Appended(NamedTuple):
    """A record that a process accepted."""

    number: int
    offset: int
    epoch: int


class Process(NamedTuple):
    """One life of a broker. It serves at leader epoch `serving` (-1: none); `named` is the epoch in
    its sent requests.
    """

    node: int
    epoch: int
    serving: int = -1
    sealed: bool = False
    end: int = 0
    flight: Appended | None = None
    wal: tuple[Appended, ...] = ()
    named: int = -1
    fenced_log: bool = False
    log_open: bool = True
    recoverer: int = NO_NODE
    stuck: bool = False


class Cluster(NamedTuple):
    """A state. `fenced` has process numbers; the newest process of a node is current.

    `late` is an election that a controller decided before it was deposed.
    """

    partition: Partition
    stream: Stream
    owner: int
    committed: tuple[int, ...] = ()
    acked: tuple[Appended, ...] = ()
    processes: tuple[Process, ...] = ()
    fenced: frozenset[int] = frozenset()
    moves: int = 0
    appended: int = 0
    late: tuple[int, int] | None = None
    forgot: bool = False


@dataclass(frozen=True, slots=True)
class MoveRules:
    """The rules; a model may drop each.

    Attributes:
        stream_closed_before_open: a stream is opened only when it is closed.
        closed_before_election: another broker is elected when the streams are closed, or their
            owner was fenced.
        seal_before_close: a source accepts no record after it began to close.
        await_pending: a source waits for pending records before it closes.
        stuck_is_fenced: after the timeout a recovery closes open streams; without the rule the controller
            closes them at the committed end.
        fence_before_recovery: a recovery puts a fence into the log before it commits its records.
        commit_before_close: a recovery commits acknowledged records before it closes the streams.
        late_elections_die: an uncommitted decision of a deposed controller has no effect.
        timeout_is_replicated: the timeout of a move survives its controller.
        cancelled_close_is_healed: a source whose close arrives after the cancellation is elected again.
    """

    stream_closed_before_open: bool = True
    closed_before_election: bool = True
    seal_before_close: bool = True
    await_pending: bool = True
    stuck_is_fenced: bool = True
    fence_before_recovery: bool = True
    commit_before_close: bool = True
    late_elections_die: bool = True
    timeout_is_replicated: bool = True
    cancelled_close_is_healed: bool = True


@dataclass(frozen=True, slots=True)
class MoveModel:
    """Bounds, and active rules."""

    nodes: int = 2
    records_max: int = 1
    moves_max: int = 1
    processes_max: int = 2
    sticks: bool = False
    rules: MoveRules = MoveRules()

    def initial(self) -> Iterable[Cluster]:
        served = Process(0, 1, serving=0)
        others = tuple(Process(node, 1) for node in range(1, self.nodes))
        yield Cluster(Partition(0, 0), Stream(True, 0, 0, 1), 0, processes=(served, *others))

    def steps(self, state: Cluster) -> Iterator[tuple[str, Cluster]]:
        for number, process in enumerate(state.processes):
            yield from self._broker(state, number, process)
            yield from self._requests(state, number, process)
            yield from self._recovery(state, number, process)
            yield from self._faults(state, number, process)
        yield from self._moves(state)
        yield from self._controller(state)

    # A broker

    def _broker(self, state: Cluster, number: int, process: Process) -> Iterator[tuple[str, Cluster]]:
        who = f"process {number}"
        if process.flight is not None:
            if process.fenced_log:
                stopped = process._replace(flight=None, serving=-1)
                yield f"refuse the put of {who}", _with(state, number, stopped)
            else:
                landed = process._replace(flight=None, wal=(*process.wal, process.flight))
                acked = (*state.acked, process.flight)
                yield (
                    f"land the put of {who}, acknowledged",
                    _with(state, number, landed)._replace(acked=acked),
                )
        if process.stuck:
            return
        opened = self._opened(state, number, process)
        if opened is not None:
            yield f"open at {who}, epoch {state.partition.epoch}", opened
        takes = not process.sealed or not self.rules.seal_before_close
        if process.serving >= 0 and takes and process.flight is None and state.appended < self.records_max:
            record = Appended(state.appended, process.end, process.serving)
            after = process._replace(flight=record, end=process.end + 1)
            yield f"append at {who}", _with(state, number, after)._replace(appended=state.appended + 1)
        moves = state.partition.moves and state.partition.leader == process.node
        if process.serving >= 0 and moves and not process.sealed:
            yield f"seal at {who}", _with(state, number, process._replace(sealed=True))
        if process.serving >= 0 and process.sealed and not moves and process.named < process.serving:
            yield f"unseal at {who}", _with(state, number, process._replace(sealed=False))
        if process.wal and self._is_owner(state, number) and _is_current(state, number):
            yield f"upload by {who}", _uploaded(state, number, process)
        pending = process.flight is not None or bool(process.wal)
        may_close = process.sealed and (not pending or not self.rules.await_pending)
        if process.serving >= 0 and may_close and process.named < process.serving:
            sent = process._replace(named=process.serving)
            sent = sent._replace(serving=-1) if self.rules.seal_before_close else sent
            yield f"send the close of {who}", _with(state, number, sent)

    def _opened(self, state: Cluster, number: int, process: Process) -> Cluster | None:
        leads = state.partition.leader == process.node and _is_current(state, number)
        if not leads or process.serving >= state.partition.epoch or not process.log_open:
            return None
        rules = streams.StreamRules(closed_before_open=self.rules.stream_closed_before_open)
        try:
            stream = streams.opened(
                state.stream, state.partition.epoch, process.node, process.epoch, rules=rules
            )
        except NotAllowedError:
            return None
        serving = process._replace(serving=stream.epoch, sealed=False, end=len(state.committed))
        return _with(state, number, serving)._replace(stream=stream, owner=number)

    def _is_owner(self, state: Cluster, number: int) -> bool:
        return state.stream.open and state.owner == number

    # Requests of a source, at any later time

    def _requests(self, state: Cluster, number: int, process: Process) -> Iterator[tuple[str, Cluster]]:
        if process.named < 0 or not _is_current(state, number):
            return
        names_end = len(state.committed) == process.end or not self.rules.await_pending
        if self._is_owner(state, number) and state.stream.epoch == process.named and names_end:
            yield f"close arrives of process {number}", state._replace(stream=_closed(state.stream))
        partition = state.partition
        asks = (partition.leader, partition.epoch) == (process.node, process.named)
        if not asks or (state.stream.open and self.rules.closed_before_election):
            return
        if partition.moves:
            yield from self._elected(state, f"elect asked by process {number}", partition.target)
        elif self.rules.cancelled_close_is_healed:
            yield from self._elected(state, f"heal asked by process {number}", process.node)

    # A recovery

    def _recovery(self, state: Cluster, number: int, dead: Process) -> Iterator[tuple[str, Cluster]]:
        """The steps of the recoverer of an ended process's log."""
        if dead.recoverer == NO_NODE or not dead.log_open or not _is_current(state, dead.recoverer):
            return
        if state.processes[dead.recoverer].stuck:
            return
        if not dead.fenced_log and self.rules.fence_before_recovery:
            yield f"fence the log of process {number}", _with(state, number, dead._replace(fenced_log=True))
            return
        owns = self._is_owner(state, number)
        if dead.wal and owns and self.rules.commit_before_close:
            yield f"recover the log of process {number}", _uploaded(state, number, dead)
            return
        stream = _closed(state.stream) if owns else state.stream
        after = dead._replace(log_open=False, fenced_log=self.rules.fence_before_recovery)
        yield f"release the log of process {number}", _with(state, number, after)._replace(stream=stream)

    # The controller

    def _moves(self, state: Cluster) -> Iterator[tuple[str, Cluster]]:
        partition = state.partition
        if not partition.moves:
            if state.moves < self.moves_max and _newest(state, partition.leader) not in state.fenced:
                for node in _living(state):
                    if node != partition.leader:
                        begun = partitions.begun(partition, partition.leader, node)
                        yield (
                            f"begin a move to node {node}",
                            state._replace(partition=begun, moves=state.moves + 1),
                        )
            return
        if state.stream.open:
            yield "cancel the move", state._replace(partition=partitions.cancelled(partition))
        elif partition.leader in _living(state):
            yield from self._elected(state, "cancel of a closed move, elected", partition.leader)
        if state.forgot:
            return
        source = _newest(state, partition.leader)
        if not state.stream.open or not self.rules.closed_before_election:
            living = _living(state)
            target = partition.target if partition.target in living else next(iter(living), NO_NODE)
            if target != NO_NODE:
                yield from self._elected(state, "timeout, elected", target)
        elif self.rules.stuck_is_fenced:
            if source not in state.fenced:
                yield f"timeout, process {source} fenced", state._replace(fenced=state.fenced | {source})
        else:
            yield "timeout, closed at the committed end", state._replace(stream=_closed(state.stream))

    def _elected(self, state: Cluster, label: str, leader: int) -> Iterator[tuple[str, Cluster]]:
        epoch = state.partition.epoch + 1
        if not self.rules.late_elections_die and state.late is None:
            yield f"{label} by a controller that is deposed", state._replace(late=(leader, epoch))
        may_leave = not state.stream.open or _newest(state, state.partition.leader) in state.fenced
        rules = partitions.PartitionRules(closed_before_election=self.rules.closed_before_election)
        after = partitions.elected(state.partition, leader, epoch, may_leave=may_leave, rules=rules)
        yield f"{label}: node {leader}", state._replace(partition=after)

    def _controller(self, state: Cluster) -> Iterator[tuple[str, Cluster]]:
        if not self.rules.timeout_is_replicated and not state.forgot and state.partition.moves:
            yield "forget timeouts with the controller", state._replace(forgot=True)
        if state.late is not None:
            leader, epoch = state.late
            yield (
                f"late election of node {leader}",
                state._replace(partition=Partition(leader, epoch), late=None),
            )
        living = _living(state)
        if _newest(state, state.partition.leader) in state.fenced:
            for node in living:
                yield from self._elected(state, "failover, elected", node)
        for number, process in enumerate(state.processes):
            told = process.recoverer != NO_NODE and _is_current(state, process.recoverer)
            if not _is_current(state, number) and process.log_open and not told:
                for node in living:
                    after = process._replace(recoverer=_newest(state, node))
                    yield f"assign the log of process {number} to node {node}", _with(state, number, after)

    # Faults

    def _faults(self, state: Cluster, number: int, process: Process) -> Iterator[tuple[str, Cluster]]:
        if number != _newest(state, process.node):
            return
        others = [node for node in _living(state) if node != process.node]
        if number not in state.fenced and others and not process.stuck:
            yield f"suspect process {number}", state._replace(fenced=state.fenced | {number})
        if self.sticks and not process.stuck and not any(each.stuck for each in state.processes):
            yield f"stick process {number}", _with(state, number, process._replace(stuck=True))
        if len(state.processes) < self.nodes + self.processes_max:
            fresh = Process(process.node, process.epoch + 1)
            partition = state.partition
            if partition.leader == process.node:  # its epoch rises, and a move ends
                partition = Partition(partition.leader, partition.epoch + 1)
            after = state._replace(processes=(*state.processes, fresh), partition=partition)
            yield f"restart node {process.node}", after

    # Properties

    def violation(self, state: Cluster) -> str | None:
        for record in state.acked:
            if not _is_safe(state, record):
                return (
                    f"record {record.number}, acknowledged at {record.offset} under epoch {record.epoch},"
                    " is lost"
                )
        if len(set(state.committed)) != len(state.committed):
            return "a record is committed twice"
        serving = [each.serving for each in state.processes if each.serving >= 0 and each.flight is not None]
        if len(set(serving)) != len(serving):
            return f"two processes take records at epoch {serving[0]}"
        return self._unrest(state)

    def _unrest(self, state: Cluster) -> str | None:
        """The remaining work where no step is possible without a fault."""
        if any(label.split(maxsplit=1)[0] not in FAULTS_AND_WISHES for label, _ in self.steps(state)):
            return None
        leader = _newest(state, state.partition.leader)
        stuck = [node for node in _living(state) if state.processes[_newest(state, node)].stuck]
        if len(stuck) == len(_living(state)) or (stuck and not state.partition.moves):
            return None  # no process is live, or a stuck process has received no request that would show it
        if state.partition.moves:
            return "a move never ends"
        is_served = state.processes[leader].serving == state.partition.epoch
        return None if is_served else "no process serves the partition"

    def canonical(self, state: Cluster) -> Hashable:
        return state

    def show(self, state: Cluster) -> str:
        move = f" to {state.partition.target}" if state.partition.moves else ""
        stream = f"open at {state.stream.epoch} of process {state.owner}" if state.stream.open else "closed"
        lives = " ".join(
            f"{number}:{'' if _is_current(state, number) else 'over,'}{each.serving}{'s' if each.sealed else ''}/{len(each.wal)}"  # noqa: E501
            for number, each in enumerate(state.processes)
        )
        return (
            f"led by {state.partition.leader} at {state.partition.epoch}{move}; {stream}; committed"
            f" {len(state.committed)}; [{lives}]"
        )


def _is_safe(state: Cluster, record: Appended) -> bool:
    """Whether a record is committed at its offset, or in the log of the stream's owner, which is
    uploaded or recovered.
    """
    if len(state.committed) > record.offset:
        return state.committed[record.offset] == record.number
    owner = state.processes[state.owner]
    return state.stream.open and state.stream.epoch == record.epoch and owner.log_open and record in owner.wal


def _uploaded(state: Cluster, number: int, process: Process) -> Cluster:
    committed = (*state.committed, *(record.number for record in process.wal))
    return _with(state, number, process._replace(wal=()))._replace(committed=committed)


def _closed(stream: Stream) -> Stream:
    return stream._replace(open=False)


def _newest(state: Cluster, node: int) -> int:
    return max(number for number, process in enumerate(state.processes) if process.node == node)


def _is_current(state: Cluster, number: int) -> bool:
    return number == _newest(state, state.processes[number].node) and number not in state.fenced


def _living(state: Cluster) -> dict[int, None]:
    """Nodes whose newest process is not fenced, in order."""
    nodes = dict.fromkeys(process.node for process in state.processes)
    return {node: None for node in nodes if _newest(state, node) not in state.fenced}


def _with(state: Cluster, number: int, process: Process) -> Cluster:
    return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))
