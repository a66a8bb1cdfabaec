"""Whether a node has seen a later log than this leader's.

A leader of a later term has everything that was committed before: an index that was seen committed in an earlier term lies before the first index of this one, and its entry has no
term above the one in which it was seen. Otherwise this leader's log is an older copy that was put back, and the same indices, ids and epochs would be given a second time. The first
rule alone is not enough, because every start of a controller appends an entry, so that a copy grows beyond what was seen. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ponor.controller.v1 import session_service_pb2 as wire

REMEDY = (
    "stop the controllers at once and mount the newest directories, of a majority of the voters. If they are gone for good, `ponor cluster quorum force-recovery` "
    "goes on without what was committed since the copy"
)


@dataclass(frozen=True, slots=True)
class Reign:
    """One leader's time in one term.

    Attributes:
        term: of the log.
        first_index: of the entry with which the leader began.
        nonce: drawn by the leader.
    """

    term: int
    first_index: int
    nonce: bytes


def lost_history(
    hello: wire.Hello, reign: Reign, incarnation: int, term_at: Callable[[int], int | None]
) -> str:
    """What this leader's log lacks, for people; empty: nothing.

    Args:
        hello: of a node.
        reign: of this leader.
        incarnation: of the quorum.
        term_at: the term of the entry at an index; None if it is not in memory.
    """
    for seen in hello.seen:
        if seen.quorum_incarnation < incarnation:
            continue  # a forced recovery gave that history up
        is_later = (
            seen.quorum_incarnation > incarnation
            or seen.leader_term > reign.term
            or (seen.leader_term == reign.term and seen.leader_nonce != reign.nonce)
            or (seen.leader_term < reign.term and seen.index >= reign.first_index)
            or (term_at(seen.index) or 0) > seen.leader_term
        )
        if is_later:
            return (
                f"this controller's log is an older copy: node {hello.node_id} knows index {seen.index} of term {seen.leader_term} (incarnation {seen.quorum_incarnation}), "
                f"but this controller's log has other entries there (its term began at index {reign.first_index}: term {reign.term}, incarnation {incarnation}); {REMEDY}"
            )
    return ""
