"""Planted bug: a change of membership begins before the one before it is committed."""

from __future__ import annotations

import pytest
from ponor_raft import leading, membership_change
from ponor_raft.errors import MembershipChangeError
from ponor_raft.membership import Membership
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = membership_change.check_change

    def check(replica: Replica, replication: Replication, wanted: Membership) -> None:
        try:
            correct(replica, replication, wanted)
        except MembershipChangeError as refused:
            if "is not committed yet" not in str(refused):
                raise

    monkeypatch.setattr(leading, "check_change", check)
