"""Rules for changing one member at a time, checked before the entry is appended.

With one change at a time, every majority of a configuration shares a voter with every majority of the next
one, so joint consensus is not needed.

The leader must have committed an entry of its own term before it appends a change. This fixes a known bug of
the algorithm (Ongaro, raft-dev, July 2015): if two leaders each append a change to the same committed
configuration, their majorities may be disjoint. Once the later leader has committed an entry of its term, the
change of the earlier leader can no longer be committed.
"""

from __future__ import annotations

from ponor_raft.errors import MembershipChangeError
from ponor_raft.follower_progress import ProgressState
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication


def check_change(replica: Replica, replication: Replication, wanted: Membership) -> None:
    """Raise `MembershipChangeError` unless `wanted` may be appended now.

    Repeating the current membership is always allowed.
    """
    current = replica.membership
    if wanted == current:
        return
    if not replication.has_committed_own_term:
        raise MembershipChangeError(
            "this leader has not committed an entry of its own term yet; wait until it has, then retry"
        )
    pending = replica.configurations.current_index
    if pending > replica.log.commit:
        raise MembershipChangeError(
            f"the membership change at index {pending} is not committed yet; wait until it is, then retry"
        )
    if not wanted.voters:
        raise MembershipChangeError("a quorum needs at least one voter; to shut it down, stop its members")
    added = [voter for voter in wanted.voters if voter not in current.voters]
    removed = [voter for voter in current.voters if voter not in wanted.voters]
    if len(added) + len(removed) > 1:
        raise MembershipChangeError(
            f"the change adds voters {_names(added)} and removes {_names(removed)}; change"
            " one voter at a time"
        )
    for voter in added:
        _check_promotion(replica, replication, voter)


def _check_promotion(replica: Replica, replication: Replication, voter: ReplicaId) -> None:
    """Refuse to promote a learner that lags: until it catches up, the group would tolerate fewer failures
    than configured.
    """
    if voter not in replica.membership.learners:
        raise MembershipChangeError(
            f"{_names([voter])} is not a learner; add it as a learner, let it catch up, then promote it"
        )
    progress = replication.progress[voter]
    lag = replica.log.last_index - progress.match_index
    lag_max = replica.limits.promotion_lag_entries_max
    heard = progress.heard_ticks_ago < replica.limits.election_ticks
    if progress.state is not ProgressState.REPLICATE or lag > lag_max or not heard:
        raise MembershipChangeError(
            f"learner {_names([voter])} is {lag} entries behind (at most {lag_max} are"
            " allowed), or it has not answered for an election timeout; let it catch up, then retry"
        )


def _names(replicas: list[ReplicaId]) -> str:
    """Format replicas for operators."""
    return ", ".join(f"{replica.node_id} ({replica.directory_id.hex()})" for replica in replicas) or "none"
