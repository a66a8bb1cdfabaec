"""Clusters under faults whose changes take many batches: simulations reach no limit at their sizes."""

from __future__ import annotations

from collections import Counter

import pytest
from ponor_broker.partitions.handoff import move_operations, owned_streams
from ponor_cluster_simulation.run.plan import NO_CLIENTS
from ponor_cluster_simulation.seeds import run_seed
from ponor_controller.domains.nodes import failover_rules
from ponor_controller.domains.nodes import registration as rules
from ponor_controller.domains.objects import reclaim_duty
from ponor_controller.kernel import proposer
from ponor_controller.server.sessions import session_service
from s3stream import client, recovery

LIMITS = (
    (rules, "PARTITIONS_PER_BATCH_MAX", 1),
    (failover_rules, "PARTITIONS_PER_STEP_MAX", 2),
    (failover_rules, "ASSIGNMENTS_PER_STEP_MAX", 1),
    (reclaim_duty, "PURGED_PER_STEP", 2),
    (reclaim_duty, "TOPICS_PER_STEP", 2),
    (reclaim_duty, "VISITS_PER_STEP", 10),
    (reclaim_duty, "DESTROYED_PER_STEP", 2),
    (proposer, "GROUP_ROWS_MAX", 1),
    (client, "STREAMS_PER_CALL_MAX", 2),
    (recovery, "STREAMS_PER_CALL_MAX", 2),
    (move_operations, "STREAMS_PER_OPERATION_MAX", 2),
    (owned_streams, "DELETED_TOGETHER_MAX", 1),
)


@pytest.mark.parametrize("seed", [2, 6, 9])
def test_a_cluster_survives_faults_between_the_batches_of_a_change(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, limit in LIMITS:
        assert hasattr(module, name), f"{module.__name__} has no limit {name}"
        monkeypatch.setattr(module, name, limit)
    registrations: Counter[bool] = Counter()
    register = rules.register_node

    def counting(*arguments: object) -> rules.Registration:
        registration = register(*arguments)  # type: ignore[arg-type]  # passed on
        registrations[registration.raised is not None] += 1
        return registration

    monkeypatch.setattr(session_service, "register_node", counting)
    result = run_seed(seed, small=False, clients=NO_CLIENTS)
    assert result.failure == "", f"seed {seed}: {result.failure}"
    assert registrations[True], "no registration took several batches"
