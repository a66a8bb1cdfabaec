"""Detect from a node's Hello that this leader's log is an older copy of the cluster's log.

The leader of a term has every entry that was committed in earlier terms. So if a node saw index i committed
in an earlier term, then (1) i is below the first index of the leader's term, and (2) the term of the leader's
entry at i is at most the term that the node saw. Otherwise an older copy of the log was restored, and the
leader would assign the same indices, ids and epochs again. Rule 1 is not sufficient: every start appends an
entry, so a restored copy grows beyond the index that the node saw.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor.controller.v1 import session_service_pb2 as wire

from ponor_controller.kernel.leading import LeaderTerm

REMEDY = (
    "stop the controllers at once and mount the newest directories of a majority of the voters. If they are"
    " lost, `ponor cluster quorum force-recovery` continues without the entries that were committed after"
    " the copy was made"
)


def lost_history(
    hello: wire.Hello, leader_term: LeaderTerm, incarnation: int, term_at: Callable[[int], int | None]
) -> str:
    """Describe what this leader's log lacks; empty if it lacks nothing.

    Args:
        hello: the Hello of a node.
        leader_term: the term of this leader.
        incarnation: incarnation of the quorum.
        term_at: the term of the entry at an index; None if it is not in memory.
    """
    for seen in hello.seen:
        if seen.quorum_incarnation < incarnation:
            continue  # a forced recovery discarded that history
        if _is_later(seen, leader_term, incarnation, term_at):
            return (
                f"this controller's log is an older copy: node {hello.node_id} has seen index {seen.index}"
                f" of term {seen.leader_term} (incarnation {seen.quorum_incarnation}), "
                "but this controller's log has other entries there (its term began at index"
                f" {leader_term.first_index}: term {leader_term.term}, incarnation {incarnation}); {REMEDY}"
            )
    return ""


def _is_later(
    seen: wire.SeenHistory, leader_term: LeaderTerm, incarnation: int, term_at: Callable[[int], int | None]
) -> bool:
    """Whether the node saw entries or a term that this leader's log lacks."""
    return (
        seen.quorum_incarnation > incarnation
        or seen.leader_term > leader_term.term
        or (seen.leader_term == leader_term.term and seen.leader_nonce != leader_term.nonce)
        or (seen.leader_term < leader_term.term and seen.index >= leader_term.first_index)
        or (term_at(seen.index) or 0) > seen.leader_term
    )
