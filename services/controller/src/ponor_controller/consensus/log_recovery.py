"""Combine log pieces and snapshots into the stored state of the Raft core, and check that they match.

If the log ends before a snapshot that this controller wrote, durable entries were lost, and the process
refuses to start. A snapshot received from another controller may be newer than the log, because it replaces
all earlier entries.
"""

from __future__ import annotations

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.membership import Membership
from ponor_raft.stored import StoredState

from ponor_controller.consensus.log_assembly import LogAssembly
from ponor_controller.consensus.log_pieces import Begin, PieceError
from ponor_controller.consensus.snapshot_format import DIGEST_BYTES, SnapshotHeader


def stored_state(
    assembly: LogAssembly, newest: SnapshotHeader | None, older: SnapshotHeader | None, initial: Membership
) -> tuple[StoredState, Begin | None]:
    """The stored state, and the restart of the log that the caller must still write (None: no restart).

    Raises:
        PieceError: log and snapshots contradict each other.
    """
    base = newest.meta if newest is not None else SnapshotMeta(0, 0, initial, bytes(DIGEST_BYTES), 0)
    begin = None
    if not _contains(assembly, base):
        if newest is None or not newest.received:
            raise PieceError(_ends_short(assembly, base))
        begin = Begin(base.index, base.term)
        assembly.add(begin)
    entries = assembly.entries
    hard_state = assembly.hard_state
    if hard_state is None:
        if entries or (newest is not None and not newest.received):
            raise PieceError("is the last entry, and no entry contains the term and the vote")
        hard_state = HardState()
    newest_term = entries[-1].term if entries else 0
    if newest_term > hard_state.term:
        raise PieceError(
            f"is the last entry: the log has term {newest_term}, above the stored term {hard_state.term}"
        )
    if base.term > hard_state.term:  # a received snapshot became durable before the hard state with its term
        hard_state = HardState(base.term, None, hard_state.floor)
    known = _known_terms(assembly, newest, older)
    before = known.get(entries[0].index - 1) if entries else base.term
    if before is None:  # the entry before the first one was trimmed, so its term is unknown
        before = entries[0].term
        del entries[0]
    first = entries[0].index if entries else base.index + 1
    return StoredState(hard_state, base, entries, base.index, (first - 1, before)), begin


def _contains(assembly: LogAssembly, base: SnapshotMeta) -> bool:
    begin, entries = assembly.begin, assembly.entries
    if begin is not None and (begin.index, begin.term) == (base.index, base.term):
        return True
    if not entries:
        return base.index == 0
    at = base.index - entries[0].index
    if at == -1:
        return True
    return 0 <= at < len(entries) and entries[at].term == base.term


def _ends_short(assembly: LogAssembly, base: SnapshotMeta) -> str:
    entries: list[Entry] = assembly.entries
    if not entries:
        return f"is the last entry: the log is empty, although there is a snapshot at index {base.index}"
    if entries[0].index > base.index:
        return (
            f"is the last entry: the log begins at index {entries[0].index}, after the snapshot at index"
            f" {base.index}"
        )
    if entries[-1].index < base.index:
        return (
            f"is the last entry: the log ends at index {entries[-1].index}, before the snapshot at index"
            f" {base.index}"
        )
    return f"is the last entry: at index {base.index}, the log and the snapshot have different terms"


def _known_terms(
    assembly: LogAssembly, newest: SnapshotHeader | None, older: SnapshotHeader | None
) -> dict[int, int]:
    known = {0: 0}
    if assembly.begin is not None:
        known[assembly.begin.index] = assembly.begin.term
    for header in (newest, older):
        if header is not None:
            known[header.index] = header.term
    return known
