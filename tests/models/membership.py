"""A model of Raft membership changes: one voter at a time, in force when appended.

It has replicas, terms and logs, and the rules that make single changes safe (Ongaro's dissertation,
4.1 and 4.2, and the erratum of 2015 about entries of the leader's term). `test_membership` shows
what dropping each rule costs.

The abstractions only add behaviour:

    - An election is one step: the candidate and a smallest majority of its own configuration take a
        higher term.
      Voters that receive it later adopt entries or vote in a higher term in later steps. Two
      disjoint majorities
      can still elect two leaders of one term.
    - An entry is committed as soon as a majority has it durable in the leader's term. A leader
    detects this only
      later; earlier knowledge allows more changes, never fewer.
    - A leader appends its first entry at its election. There are no data entries, which obey the
    same rules.
    - Lost, late and repeated messages are steps that happen later or never. A crash loses nothing
    durable; a
      crashed leader takes no steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations, permutations
from typing import NamedTuple, TypeAlias

Replica: TypeAlias = int
Voters: TypeAlias = int
"""A configuration: a set of replicas as bits."""


class Entry(NamedTuple):
    """An entry: a leader's first one, or (`voters` not 0) a configuration."""

    term: int
    voters: Voters


Log: TypeAlias = tuple[Entry, ...]


class Member(NamedTuple):
    """A replica. A higher term ends its leadership."""

    term: int
    leads: bool
    log: Log


class Quorum(NamedTuple):
    """A state: all replicas, and the history of commits.

    `committed` is the longest committed log, `committed_in` the term of its leader. `lost`: another
    entry was committed in place of a committed one.
    """

    members: tuple[Member, ...]
    committed: Log = ()
    committed_in: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MembershipRules:
    """The rules; a model may drop each.

    Attributes:
        one_at_a_time: a change begins after the previous one is committed.
        own_term_first: a change begins after an entry of the leader's term is committed.
        in_force_on_append: a replica uses the newest configuration in its log. Without the rule it uses one
            that it knows to be committed, which may be any earlier one.
        one_voter: a change adds or removes one voter.
        own_term_commits: only entries of the leader's term are committed by counting.
        longer_log_wins: a vote is granted only to a log that is at least as new.
    """

    one_at_a_time: bool = True
    own_term_first: bool = True
    in_force_on_append: bool = True
    one_voter: bool = True
    own_term_commits: bool = True
    longer_log_wins: bool = True

    @classmethod
    def names(cls) -> list[str]:
        """All rules."""
        return [field.name for field in fields(cls)]


@dataclass(frozen=True, slots=True)
class MembershipModel:
    """Replicas 0 to `replicas` - 1; the first `first_voters` are the initial voters."""

    replicas: int
    first_voters: int
    changes_max: int = 2
    terms_max: int = 3
    rules: MembershipRules = MembershipRules()

    def initial(self) -> Iterable[Quorum]:
        return [Quorum((Member(0, False, ()),) * self.replicas)]

    def steps(self, state: Quorum) -> Iterator[tuple[str, Quorum]]:
        for number, member in enumerate(state.members):
            yield from self._elections(state, number)
            if member.leads:
                yield from self._changes(state, number)
                yield from self._replications(state, number)

    def violation(self, state: Quorum) -> str | None:
        if state.lost:
            return "two different entries were committed at one index"
        leaders: dict[int, int] = {}
        for number, member in enumerate(state.members):
            if not member.leads:
                continue
            other = leaders.setdefault(member.term, number)
            if other != number:
                return f"{_name(other)} and {_name(number)} both lead term {member.term}"
            if member.term > state.committed_in and member.log[: len(state.committed)] != state.committed:
                return f"{_name(number)} leads term {member.term} without what was committed"
        return None

    def canonical(self, state: Quorum) -> Hashable:
        """The least renaming that permutes the first voters among themselves."""
        return min(
            (
                tuple([_renamed(state.members[number], order) for number in order]),
                _renamed_log(state.committed, order),
                state.committed_in,
                state.lost,
            )
            for order in _renamings(self.replicas, self.first_voters)
        )

    def show(self, state: Quorum) -> str:
        shown = [
            f"{_name(number)}{'*' if member.leads else ' '}{member.term}:{_log(member.log)}"
            for number, member in enumerate(state.members)
        ]
        return f"{'  '.join(shown)}  committed {_log(state.committed)}"

    def _elections(self, state: Quorum, candidate: Replica) -> Iterator[tuple[str, Quorum]]:
        own = state.members[candidate]
        for electorate in self._electorates(candidate, state):
            term = 1 + max(state.members[voter].term for voter in electorate)
            if term > self.terms_max:
                continue
            if self.rules.longer_log_wins and not all(
                _at_least_as_new(own.log, state.members[voter].log) for voter in electorate
            ):
                continue
            members = list(state.members)
            for voter in electorate:
                members[voter] = Member(term, False, members[voter].log)
            members[candidate] = Member(term, True, (*own.log, Entry(term, 0)))
            label = f"elect {_name(candidate)} in term {term} by {''.join(map(_name, electorate))}"
            yield label, self._after(tuple(members), state, candidate)

    def _electorates(self, candidate: Replica, state: Quorum) -> Iterator[tuple[Replica, ...]]:
        """Sets of voters that can elect the candidate, itself included."""
        log = state.members[candidate].log
        if self.rules.in_force_on_append:
            believed = [self._newest(log)]
        else:
            known = _common(log, state.committed)
            believed = sorted({self._newest(log[:length]) for length in range(known + 1)})
        for voters in believed:
            yield from (electorate for electorate in _majorities(voters) if candidate in electorate)

    def _changes(self, state: Quorum, leader: Replica) -> Iterator[tuple[str, Quorum]]:
        own = state.members[leader]
        if self._changes_made(state) >= self.changes_max or not self._may_change(own, state):
            return
        present = self._newest(own.log)
        for wanted in range(1, 1 << self.replicas):
            if wanted == present or (self.rules.one_voter and (wanted ^ present).bit_count() != 1):
                continue
            members = list(state.members)
            members[leader] = Member(own.term, True, (*own.log, Entry(own.term, wanted)))
            yield f"change by {_name(leader)} to {_set(wanted)}", self._after(tuple(members), state, leader)

    def _may_change(self, own: Member, state: Quorum) -> bool:
        known = _common(own.log, state.committed)
        if self.rules.one_at_a_time and any(entry.voters for entry in own.log[known:]):
            return False
        return not self.rules.own_term_first or any(entry.term == own.term for entry in own.log[:known])

    def _replications(self, state: Quorum, leader: Replica) -> Iterator[tuple[str, Quorum]]:
        """Replicate one entry to a follower; a conflicting suffix of its log is removed."""
        own = state.members[leader]
        for follower, other in enumerate(state.members):
            if follower == leader or other.term > own.term:
                continue
            common = _common(own.log, other.log)
            kept = other.log if common == len(own.log) else own.log[: common + 1]
            after = Member(own.term, other.leads and other.term == own.term, kept)
            if after == other:
                continue
            members = list(state.members)
            members[follower] = after
            label = f"replicate {_name(leader)} to {_name(follower)} up to {min(common + 1, len(own.log))}"
            yield label, self._after(tuple(members), state, leader)

    def _after(self, members: tuple[Member, ...], before: Quorum, leader: Replica) -> Quorum:
        """The state after a step of `leader`, with new commits."""
        own = members[leader]
        voters = self._newest(
            own.log if self.rules.in_force_on_append else own.log[: _common(own.log, before.committed)]
        )
        for length in range(len(own.log), 0, -1):
            if self.rules.own_term_commits and own.log[length - 1].term != own.term:
                break
            holders = sum(
                1
                for number, member in enumerate(members)
                if voters >> number & 1
                and member.term == own.term
                and member.log[:length] == own.log[:length]
            )
            if 2 * holders > voters.bit_count():
                return _committed(members, before, own.log[:length], own.term)
        return Quorum(members, before.committed, before.committed_in, before.lost)

    def _newest(self, log: Log) -> Voters:
        return next((entry.voters for entry in reversed(log) if entry.voters), (1 << self.first_voters) - 1)

    def _changes_made(self, state: Quorum) -> int:
        """Number of different configuration entries in all logs; entries truncated everywhere do no harm."""
        made = {
            (position, entry)
            for member in state.members
            for position, entry in enumerate(member.log)
            if entry.voters
        }
        return len(made)


def _committed(members: tuple[Member, ...], before: Quorum, log: Log, term: int) -> Quorum:
    if _common(log, before.committed) < min(len(log), len(before.committed)):
        return Quorum(members, log, term, lost=True)
    if len(log) <= len(before.committed):
        return Quorum(members, before.committed, before.committed_in, before.lost)
    return Quorum(members, log, term, before.lost)


def _at_least_as_new(log: Log, other: Log) -> bool:
    return (log[-1].term if log else 0, len(log)) >= (other[-1].term if other else 0, len(other))


def _common(one: Log, other: Log) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@cache
def _majorities(voters: Voters) -> tuple[tuple[Replica, ...], ...]:
    """All smallest majorities; larger ones only raise more terms."""
    members = [number for number in range(voters.bit_length()) if voters >> number & 1]
    return tuple(combinations(members, len(members) // 2 + 1))


@cache
def _renamings(replicas: int, first_voters: int) -> tuple[tuple[Replica, ...], ...]:
    return tuple(
        (*voters, *others)
        for voters in permutations(range(first_voters))
        for others in permutations(range(first_voters, replicas))
    )


@cache
def _renamed(member: Member, order: tuple[Replica, ...]) -> tuple[int, bool, Log]:
    return (member.term, member.leads, _renamed_log(member.log, order))


@cache
def _renamed_log(log: Log, order: tuple[Replica, ...]) -> Log:
    """The log with renamed replicas; `order` has the old replica of each new place."""
    return tuple(
        Entry(term, sum(1 << new for new, old in enumerate(order) if voters >> old & 1))
        for term, voters in log
    )


def _name(number: Replica) -> str:
    return "ABCDEFGH"[number]


def _set(voters: Voters) -> str:
    return "".join(_name(number) for number in range(voters.bit_length()) if voters >> number & 1)


def _log(log: Log) -> str:
    return (
        "["
        + " ".join(f"{entry.term}{'=' + _set(entry.voters) if entry.voters else ''}" for entry in log)
        + "]"
    )
