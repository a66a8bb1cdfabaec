"""A model of the write-ahead log in the store and its takeover, with writers of several epochs that
continue as zombies.

Puts and deletes arrive at any time or never. The controller has the protocol's rows. There is one
process per node epoch, which first recovers the earlier logs and then writes. Each rule can be
dropped. One record is one slot; a commit and its answer are one step. The model omits multi-key
listings, clocks, and lost objects (libs/s3stream/tests/test_takeover.py covers them). `wal_world`
has states and rules.

Properties: an acknowledged record is committed at its offset, or can still be. No record is
committed twice, or under another stream epoch than its own. No commit leaves a gap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from tests.models.wal_world import (
    ALL_RULES,
    FENCE,
    OTHER,
    STREAMS,
    Answer,
    Job,
    Process,
    Put,
    Record,
    Stream,
    WalRules,
    World,
    committed,
    name,
    replaced,
    with_job,
    with_process,
    with_stream,
)


@dataclass(frozen=True, slots=True)
class WalModel:
    """Bounds, and active rules.

    `trusts_store`: the store keeps its condition. `verifies`: the writer checks with the controller
    before it acknowledges.
    """

    epochs_max: int = 2
    appends_max: int = 2
    in_flight_max: int = 2
    copies_max: int = 0
    streams: int = 1
    moves: bool = False
    rules: WalRules = ALL_RULES
    trusts_store: bool = True
    verifies: bool = False

    def initial(self) -> Iterable[World]:
        streams = tuple(Stream(is_open=True, epoch=1, owner=1) for _ in range(self.streams))
        first = Process(wal_open=True, holds=(1,) * self.streams, next_offsets=(0,) * self.streams)
        return [World(((1, 0),), streams, (first,), frozenset())]

    def steps(self, state: World) -> Iterator[tuple[str, World]]:
        if state.wrong is not None:
            return
        yield from self._bump(state)
        for epoch, process in enumerate(state.processes, 1):
            if not process.stopped:
                yield from self._take_over(state, epoch, process)
                yield from self._write(state, epoch, process)
                yield from self._tidy(state, epoch, process)
        yield from self._store(state)
        yield from self._other_owner(state)

    def violation(self, state: World) -> str | None:
        if state.wrong is not None:
            return state.wrong
        for epoch, process in enumerate(state.processes, 1):
            for sequence in sorted(process.acknowledged):
                lost = self._lost(state, epoch, sequence, process.slots[sequence])
                if lost is not None:
                    return f"slot {sequence} of log {epoch} was acknowledged, and {lost}"
        return None

    def canonical(self, state: World) -> Hashable:
        return state

    def show(self, state: World) -> str:
        slots = " ".join(
            f"{log}/{at}={'fence' if content == FENCE else name(content)}"
            for log, at, content in sorted(state.store)
        )
        under_way = " ".join(
            f"{put.log}/{put.sequence}{'F' if put.content == FENCE else ''}" for put in sorted(state.puts)
        )
        streams = " ".join(
            f"{STREAMS[number]}@{each.epoch}{'' if each.is_open else ' closed'}[{' '.join(map(name, each.content))}]"  # noqa: E501
            for number, each in enumerate(state.streams)
        )
        return f"open {dict(state.open_logs)}  {streams}  store [{slots}]  under way [{under_way}]"

    def _lost(self, state: World, log: int, sequence: int, record: Record) -> str | None:
        """Why a record is lost; empty if it is not."""
        stream = state.streams[record.stream]
        if record.offset < len(stream.content):
            found = stream.content[record.offset]
            return None if found == record else f"offset {record.offset} holds {name(found)}"
        if not stream.is_open or stream.epoch != record.stream_epoch:
            return "its stream went on without it"
        trim = dict(state.open_logs).get(log)
        if trim is None or sequence < trim:
            return "no recovery will read it"
        held = {at: content for where, at, content in state.store if where == log}
        if any(held.get(at, FENCE) == FENCE for at in range(trim, sequence + 1)):
            return "no walk reaches it"
        return None

    # --- the takeover
    # --------------------------------------------------------------------------------------------------------

    def _bump(self, state: World) -> Iterator[tuple[str, World]]:
        """A new process of the node: the controller's answer names the logs to recover."""
        epoch = len(state.processes) + 1
        if epoch > self.epochs_max:
            return
        nothing = (-1,) * self.streams
        before = [process.peeked for process in state.processes if process.peeked is not None]
        lists = [("bump", state.open_logs)]
        if not self.rules.trim_with_bump:
            lists += [("bump-late", peeked) for peeked in before]
        for label, open_logs in lists:
            jobs = tuple(Job(log, trim, trim) for log, trim in open_logs)
            if not self.rules.only_open_logs:
                known = {job.log for job in jobs}
                jobs += tuple(Job(log, 0, 0) for log in range(1, epoch) if log not in known)
            process = Process(jobs=jobs, holds=nothing, next_offsets=nothing)
            yield f"{label} to epoch {epoch}", state._replace(processes=(*state.processes, process))
        if not self.rules.trim_with_bump and state.processes[-1].peeked is None:
            peeking = state.processes[-1]._replace(peeked=state.open_logs)
            yield (
                f"peek for epoch {epoch}",
                state._replace(processes=(*state.processes[:-1], peeking)),
            )

    def _take_over(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        for number, job in enumerate(process.jobs):
            if job.closed:
                continue
            if job.end < 0:
                yield from self._walk(state, epoch, number, job)
            else:
                yield from self._recover(state, epoch, number, job)

    def _walk(self, state: World, epoch: int, number: int, job: Job) -> Iterator[tuple[str, World]]:
        held = {at: content for log, at, content in state.store if log == job.log}
        who = f"{epoch} at slot {job.at} of log {job.log}"
        if not self.rules.only_open_logs and job.log not in dict(state.open_logs):
            kept = tuple(content for _, content in sorted(held.items()) if content != FENCE)
            yield f"list {who}", with_job(state, epoch, number, job._replace(kept=kept, end=0))
            return
        if not self.rules.walks_from_trim and job.at == job.start and not job.kept and held:
            lowest = min(held)
            if lowest > job.at:
                yield (
                    f"skip {who} to {lowest}",
                    with_job(state, epoch, number, job._replace(start=lowest, at=lowest)),
                )
                return
        content = held.get(job.at)
        if content == FENCE:
            yield f"end {who}", with_job(state, epoch, number, job._replace(end=job.at))
        elif content is not None:
            walked = job._replace(at=job.at + 1, kept=(*job.kept, content))
            yield f"read {who}", with_job(state, epoch, number, walked)
        elif not self.rules.fenced:
            yield f"end {who}", with_job(state, epoch, number, job._replace(end=job.at))
        else:
            put = Put(job.log, job.at, FENCE, epoch)
            if put not in state.puts:
                yield f"fence {who}", state._replace(puts=state.puts | {put})

    def _recover(self, state: World, epoch: int, number: int, job: Job) -> Iterator[tuple[str, World]]:
        listed = job.log in dict(state.open_logs)
        if self.rules.old_epochs_refused and epoch != len(state.processes):
            return
        if not listed and self.rules.only_open_logs:
            return  # another process closed it
        for stream in range(self.streams):
            if stream not in job.done:
                yield from self._recover_stream(state, epoch, number, job, stream)
        if job.done and (len(job.done) == self.streams or not self.rules.closed_when_all_done):
            yield f"close log {job.log} by {epoch}", self._closed(state, epoch, number, job)

    def _recover_stream(
        self, state: World, epoch: int, number: int, job: Job, at: int
    ) -> Iterator[tuple[str, World]]:
        """Commit the next record of a stream, or close the stream after the last one."""
        stream = state.streams[at]
        for record in job.kept:
            if record.stream != at:
                continue
            foreign = not stream.is_open or record.stream_epoch != stream.epoch
            if foreign and self.rules.stream_epoch_filter:
                continue
            if record.offset < len(stream.content) and self.rules.offset_filter:
                continue
            rest = tuple(each for each in job.kept if each != record)
            after = with_job(state, epoch, number, job._replace(kept=rest))
            yield f"replay {name(record)} by {epoch}", committed(after, record)
            return
        done = with_job(state, epoch, number, job._replace(done=(*job.done, at)))
        if stream.is_open and stream.owner == job.log:
            done = with_stream(done, at, stream._replace(is_open=False))
        yield f"close-stream {STREAMS[at]} by {epoch}", done

    def _closed(self, state: World, epoch: int, number: int, job: Job) -> World:
        """Close a log; its slots are deleted at some later time."""
        last = job.end if self.rules.fence_stays else job.end + 1
        deletes = {(job.log, at) for at in range(job.start, last)}
        after = with_job(state, epoch, number, job._replace(closed=True, kept=()))
        return after._replace(
            open_logs=tuple(each for each in state.open_logs if each[0] != job.log),
            deletes=state.deletes | deletes,
        )

    # --- the writer
    # --------------------------------------------------------------------------------------------------------

    def _write(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        current = epoch == len(state.processes)
        if not process.wal_open and current and (self.rules.opened_before_put or process.jobs):
            opened = process._replace(wal_open=True)
            yield (
                f"open-log {epoch}",
                with_process(state, epoch, opened)._replace(open_logs=(*state.open_logs, (epoch, 0))),
            )
        may_write = process.wal_open or not self.rules.opened_before_put
        if may_write and current:
            yield from self._open_streams(state, epoch, process)
        under_way = len(process.slots) - len(process.confirmed)
        for at, stream_epoch in enumerate(process.holds):
            left = self.appends_max - sum(len(each.slots) for each in state.processes)
            if may_write and stream_epoch >= 0 and left and under_way < self.in_flight_max:
                yield from self._append(state, epoch, process, at)
        yield from self._hear(state, epoch, process)
        yield from self._acknowledge(state, epoch, process)
        yield from self._repeat(state, epoch, process)

    def _open_streams(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        for at, stream in enumerate(state.streams):
            if process.holds[at] >= 0 or stream.owner == OTHER:
                continue
            if stream.is_open and self.rules.opened_after_recovery:
                continue
            holding = process._replace(
                holds=replaced(process.holds, at, stream.epoch + 1),
                next_offsets=replaced(process.next_offsets, at, len(stream.content)),
            )
            taken = stream._replace(is_open=True, epoch=stream.epoch + 1, owner=epoch)
            yield (
                f"open {STREAMS[at]} by {epoch}",
                with_stream(with_process(state, epoch, holding), at, taken),
            )

    def _append(self, state: World, epoch: int, process: Process, at: int) -> Iterator[tuple[str, World]]:
        record = Record(at, process.holds[at], process.next_offsets[at], epoch)
        put = Put(epoch, len(process.slots), record, epoch)
        appended = process._replace(
            slots=(*process.slots, record),
            next_offsets=replaced(process.next_offsets, at, record.offset + 1),
        )
        after = with_process(state, epoch, appended)
        yield f"append {name(record)} in slot {put.sequence}", after._replace(puts=state.puts | {put})

    def _hear(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        for answer in sorted(state.answers):
            if answer.sender != epoch or answer.log != epoch:
                continue
            after = state._replace(answers=state.answers - {answer})
            held = next(
                (each for log, at, each in state.store if (log, at) == (epoch, answer.sequence)), None
            )
            own = held == process.slots[answer.sequence] or not self.rules.taken_is_read
            if answer.created or own:
                confirmed = process._replace(confirmed=process.confirmed | {answer.sequence})
                yield (
                    f"hear {epoch} that slot {answer.sequence} is there",
                    with_process(after, epoch, confirmed),
                )
            else:
                yield (
                    f"stop {epoch}, whose slot {answer.sequence} is taken",
                    with_process(after, epoch, process._replace(stopped=True)),
                )

    def _acknowledge(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        if self.verifies and epoch != len(state.processes):
            return
        for sequence in sorted(process.confirmed - process.acknowledged):
            record = process.slots[sequence]
            in_order = all(at in process.confirmed for at in range(sequence))
            # Appends to a released stream fail.
            if (in_order or not self.rules.acknowledged_in_order) and process.holds[
                record.stream
            ] == record.stream_epoch:
                told = process._replace(acknowledged=process.acknowledged | {sequence})
                yield f"acknowledge {name(record)} by {epoch}", with_process(state, epoch, told)

    def _repeat(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        if state.copies == self.copies_max:
            return
        for sequence, record in enumerate(process.slots):
            put = Put(epoch, sequence, record, epoch)
            if sequence not in process.confirmed and put not in state.puts:
                yield (
                    f"repeat slot {sequence} by {epoch}",
                    state._replace(puts=state.puts | {put}, copies=state.copies + 1),
                )

    def _tidy(self, state: World, epoch: int, process: Process) -> Iterator[tuple[str, World]]:
        """Upload acknowledged records in order, and delete slots."""
        listed = epoch in dict(state.open_logs)
        allowed = epoch == len(state.processes) or not self.rules.old_epochs_refused
        sequence = process.trim
        if allowed and listed and sequence in process.acknowledged:
            record = process.slots[sequence]
            stream = state.streams[record.stream]
            is_committed = record.offset < len(stream.content)
            if stream.is_open and stream.epoch == record.stream_epoch and not is_committed:
                after = with_process(state, epoch, process._replace(trim=sequence + 1))
                logs = tuple((log, sequence + 1 if log == epoch else trim) for log, trim in state.open_logs)
                yield f"upload {name(record)} by {epoch}", committed(after._replace(open_logs=logs), record)
        may_delete = process.trim > process.deleted
        if not self.rules.deleted_after_commit:
            may_delete = may_delete or process.deleted in process.acknowledged
        if may_delete:
            after = with_process(state, epoch, process._replace(deleted=process.deleted + 1))
            yield (
                f"drop slot {process.deleted} of log {epoch}",
                after._replace(deletes=state.deletes | {(epoch, process.deleted)}),
            )

    # --- the store and the others
    # ------------------------------------------------------------------------------------------------

    def _store(self, state: World) -> Iterator[tuple[str, World]]:
        taken = {(log, at) for log, at, _ in state.store}
        for put in sorted(state.puts):
            key = (put.log, put.sequence)
            free = key not in taken
            store = state.store
            if free or not self.trusts_store:
                store = frozenset(each for each in store if each[:2] != key) | {(*key, put.content)}
            after = state._replace(puts=state.puts - {put}, store=store)
            if put.content != FENCE:
                answer = Answer(put.log, put.sequence, put.sender, free or not self.trusts_store)
                after = after._replace(answers=state.answers | {answer})
            what = "fence" if put.content == FENCE else name(put.content)
            yield f"land {what} at slot {put.sequence} of log {put.log}{'' if free else ', taken'}", after
        for log, sequence in sorted(state.deletes):
            store = frozenset(each for each in state.store if each[:2] != (log, sequence))
            yield (
                f"delete slot {sequence} of log {log}",
                state._replace(deletes=state.deletes - {(log, sequence)}, store=store),
            )

    def _other_owner(self, state: World) -> Iterator[tuple[str, World]]:
        """A planned move: the owner closes a stream with all its records committed; another node
        opens it and appends.
        """
        if not self.moves:
            return
        stream, owner = state.streams[0], state.streams[0].owner
        if owner != OTHER and stream.is_open and owner == len(state.processes):
            process = state.processes[owner - 1]
            waiting = any(
                process.slots[at].stream == 0 and process.slots[at] not in stream.content
                for at in process.acknowledged
            )
            if process.holds[0] == stream.epoch and not waiting and not process.stopped:
                left = with_process(state, owner, process._replace(holds=replaced(process.holds, 0, -1)))
                moved = Stream(is_open=True, epoch=stream.epoch + 1, owner=OTHER, content=stream.content)
                yield f"move a away from {owner}", with_stream(left, 0, moved)
        if owner == OTHER and len(stream.content) < self.appends_max:
            record = Record(0, stream.epoch, len(stream.content), OTHER)
            yield f"write {name(record)} elsewhere", committed(state, record)
