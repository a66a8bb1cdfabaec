"""Write-ahead logs in the store, as the controller tracks them: open, trimmed, assigned to a
recoverer, closed.

`tests/models/object_wal.py` models the slots in the store.
"""

from __future__ import annotations

from typing import NamedTuple

from ponor_cluster_simulation.protocols.streams import NO_NODE, NotAllowedError


class Wal(NamedTuple):
    """An open log. `recoverer` (node, node epoch) and the owner may trim and close it."""

    trim_sequence: int = 0
    recoverer: tuple[int, int] = (NO_NODE, NO_NODE)
    token: int = 0


def opened(known: Wal | None, *, was_closed: bool) -> Wal:
    """A new log.

    Raises:
        NotAllowedError: the node epoch already has or had a log.
    """
    if known is not None or was_closed:
        raise NotAllowedError("a log is opened twice")
    return Wal()


def trimmed(wal: Wal, sequence: int, caller: tuple[int, int] | None, owner: tuple[int, int]) -> Wal:
    """The log after a trim up to `sequence`.

    Raises:
        NotAllowedError: the trim goes back, or the caller neither owns nor recovers the log.
    """
    if sequence <= wal.trim_sequence:
        raise NotAllowedError(
            f"a log is trimmed to {sequence}, but was already trimmed to {wal.trim_sequence}"
        )
    _require_actor(wal, caller, owner)
    return wal._replace(trim_sequence=sequence)


def assigned(wal: Wal, recoverer: tuple[int, int], token: int, *, owner_is_over: bool) -> Wal:
    """The log with a recoverer.

    Raises:
        NotAllowedError: the owner may still commit, or the token does not rise by one.
    """
    if not owner_is_over:
        raise NotAllowedError("a recoverer is assigned to a log, but its owner may still commit")
    if token != wal.token + 1:
        raise NotAllowedError(f"recovery token {token} follows token {wal.token}")
    return wal._replace(recoverer=recoverer, token=token)


def closed(
    wal: Wal,
    end_sequence: int,
    caller: tuple[int, int] | None,
    owner: tuple[int, int],
    *,
    open_stream: int | None,
) -> None:
    """Check the end of a log.

    Raises:
        NotAllowedError: one of its streams is open, it ends before its trim point, or the caller neither owns
            nor recovers it.
    """
    if open_stream is not None:
        raise NotAllowedError(f"a log is closed while its stream {open_stream} is open")
    if end_sequence < wal.trim_sequence:
        raise NotAllowedError(f"a log is closed at {end_sequence}, but it is trimmed to {wal.trim_sequence}")
    _require_actor(wal, caller, owner)


def _require_actor(wal: Wal, caller: tuple[int, int] | None, owner: tuple[int, int]) -> None:
    if caller is not None and caller not in {owner, wal.recoverer}:
        raise NotAllowedError(
            f"{caller} changes the log of {owner}, but is neither its owner nor its recoverer {wal.recoverer}"
        )
