"""Whether a node has seen a later log than this leader's.

A leader of a later term has everything that was committed before, so an index that was seen committed in an earlier term is before the first index of this one. If it is not, this
leader's log is an older copy that was put back, and the same indices, ids and epochs would be given a second time. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor.controller.v1 import session_service_pb2 as wire

REMEDY = (
    "stop the controllers and mount the newest directory, or give other voters the lead. If it is gone for good, `ponor cluster quorum force-recovery` "
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


def lost_history(hello: wire.Hello, reign: Reign, incarnation: int) -> str:
    """What this leader's log lacks, for people; empty: nothing."""
    for seen in hello.seen:
        if seen.quorum_incarnation < incarnation:
            continue  # a forced recovery gave that history up
        is_later = (
            seen.quorum_incarnation > incarnation
            or seen.leader_term > reign.term
            or (seen.leader_term == reign.term and seen.leader_nonce != reign.nonce)
            or (seen.leader_term < reign.term and seen.index >= reign.first_index)
        )
        if is_later:
            return (
                f"this controller's log is an older copy: node {hello.node_id} knows index {seen.index} of term {seen.leader_term} (incarnation {seen.quorum_incarnation}), "
                f"but this controller's log has other entries from index {reign.first_index} on (term {reign.term}, incarnation {incarnation}); {REMEDY}"
            )
    return ""
