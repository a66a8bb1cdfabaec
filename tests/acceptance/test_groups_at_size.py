"""One group of three client families consumes a million records while members join and leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.stores import STORES, store_for_test
from tests.e2e.test_consumer_groups import Team, join_and_leave_politely

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RECORDS = int(os.environ.get("PONOR_RECORDS", "1000000"))


@pytest.mark.parametrize("kind", STORES)
def test_a_changing_group_consumes_a_million_records(kind: str, tmp_path: Path) -> None:
    with store_for_test(kind, tmp_path) as store:
        cluster = LocalCluster(tmp_path, arguments=store.arguments, environment=store.environment)
        with cluster:
            team = Team(cluster, tmp_path, "million", RECORDS, records_per_commit_max=1000, wait_s_max=900.0)
            try:
                join_and_leave_politely(team)
            finally:
                for member in team.members:
                    if member.process.poll() is None:
                        member.kill()
            print(f"\n{team.account()}: {team.produced} records, each committed once")
