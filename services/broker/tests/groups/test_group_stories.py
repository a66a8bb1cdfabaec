"""Scenarios of the classic group protocol. `Story` in conftest.py describes the lines."""

from __future__ import annotations

from typing import Any

import pytest
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import GroupRecord, MemberRecord
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode

TWO_IN_GENERATION_1 = """
    a joins -> a: MEMBER_ID_REQUIRED
    a joins -> nothing
    b joins -> b: MEMBER_ID_REQUIRED
    b joins -> nothing
    2999 ms -> nothing
    1 ms -> nothing
    3000 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
    b syncs -> nothing
    a syncs a=A b=B -> kept: generation 1 a.1=A b.1=B; a: gets A; b: gets B
"""


def test_members_that_join_during_the_initial_delay_share_the_first_generation(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    assert story.membership.state is GroupState.STABLE


def test_the_initial_delay_is_extended_by_newcomers_up_to_the_rebalance_timeout(story: Any) -> None:
    story.tell("""
        a joins version=3 rebalance=7000 -> nothing
        2000 ms -> nothing
        b joins version=3 rebalance=7000 -> nothing
        3000 ms -> nothing
        c joins version=3 rebalance=7000 -> nothing
        1999 ms -> nothing
        1 ms -> a: in generation 1 by range, leads a.1/t b.1/t c.1/t; b: in generation 1 by range, follows a.1; c: in generation 1 by range, follows a.1
    """)


def test_a_join_and_a_leave_make_the_others_rejoin(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("""
        c joins -> c: MEMBER_ID_REQUIRED
        a beats -> a: fine
        c joins -> nothing
        a beats -> a: REBALANCE_IN_PROGRESS
        a joins -> nothing
        b joins -> a: in generation 2 by range, leads a.1/t b.1/t c.1/t; b: in generation 2 by range, follows a.1; c: in generation 2 by range, follows a.1
        a syncs a=A b=B c=C -> kept: generation 2 a.1=A b.1=B c.1=C; a: gets A
        b syncs -> b: gets B
        c syncs -> c: gets C
        a leaves -> a: gone
        b beats -> b: REBALANCE_IN_PROGRESS
        b joins -> nothing
        c joins -> b: in generation 3 by range, leads b.1/t c.1/t; c: in generation 3 by range, follows b.1
    """)


def test_the_generation_of_an_empty_group_continues(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("""
        b leaves -> b: gone
        a leaves -> a: gone; kept: generation 2 without members
        a beats -> a: UNKNOWN_MEMBER_ID
        c joins version=3 -> nothing
        3000 ms -> c: in generation 3 by range, leads c.1/t
    """)


def test_a_silent_member_is_removed_after_its_session_timeout(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("""
        9999 ms -> nothing
        a beats -> a: fine
        1 ms -> nothing
        a beats -> a: REBALANCE_IN_PROGRESS
        b beats -> b: UNKNOWN_MEMBER_ID
        a joins -> a: in generation 2 by range, leads a.1/t
    """)


def test_a_group_becomes_empty_when_all_sessions_end(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("10000 ms -> kept: generation 2 without members")
    assert story.timers == {}


def test_a_member_that_does_not_rejoin_in_time_is_removed(
    quick_story: Any,
) -> None:
    quick_story.tell("""
        a joins version=3 rebalance=20000 session=30000 -> nothing
        b joins version=3 rebalance=5000 session=30000 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
        a syncs a=A b=B -> kept: generation 1 a.1=A b.1=B; a: gets A
        b syncs -> b: gets B
        c joins version=3 rebalance=5000 -> nothing
        19000 ms -> nothing
        b joins version=3 rebalance=5000 session=30000 -> nothing
        1000 ms -> b: in generation 2 by range, leads b.1/t c.1/t; c: in generation 2 by range, follows b.1
        a beats -> a: UNKNOWN_MEMBER_ID
    """)


def test_members_that_do_not_sync_in_time_are_removed(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 rebalance=8000 session=60000 -> nothing
        b joins version=3 rebalance=8000 session=60000 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
        b syncs -> nothing
        8000 ms -> b: REBALANCE_IN_PROGRESS
        b joins version=3 -> b: in generation 2 by range, leads b.1/t
        a syncs -> a: UNKNOWN_MEMBER_ID
    """)


def test_an_assigned_id_delays_the_next_generation_until_it_expires(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        b joins session=6000 -> b: MEMBER_ID_REQUIRED
        a joins version=3 -> nothing
        5999 ms -> nothing
        1 ms -> a: in generation 2 by range, leads a.1/t
        b joins -> b: UNKNOWN_MEMBER_ID
    """)


def test_the_first_join_of_a_disconnected_client_ends_after_five_minutes(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 rebalance=900000 session=1800000 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        b joins version=3 -> nothing
        300000 ms -> b: UNKNOWN_MEMBER_ID
        a joins -> a: in generation 2 by range, leads a.1/t
    """)


def test_a_repeated_join_answers_the_former_one(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        b joins version=3 -> nothing
        a joins -> a: in generation 2 by range, leads a.1/t b.1/t; b: in generation 2 by range, follows a.1
        c joins version=3 -> nothing
        b joins -> nothing
        b joins -> b: REBALANCE_IN_PROGRESS
        a joins -> a: in generation 3 by range, leads a.1/t b.1/t c.1/t; b: in generation 3 by range, follows a.1; c: in generation 3 by range, follows a.1
        b joins -> b: in generation 3 by range, follows a.1
        a joins -> a: in generation 3 by range, leads a.1/t b.1/t c.1/t
    """)


def test_a_stable_group_rebalances_for_a_leader_or_for_a_changed_subscription_only(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("""
        b joins -> b: in generation 1 by range, follows a.1
        b syncs -> b: gets B
        b joins topics=t,u -> nothing
        a joins -> a: in generation 2 by range, leads a.1/t b.1/t,u; b: in generation 2 by range, follows a.1
        a syncs a=A b=B -> kept: generation 2 a.1=A b.1=B; a: gets A
        b syncs -> b: gets B
        a joins -> nothing
        b joins topics=t,u -> a: in generation 3 by range, leads a.1/t b.1/t,u; b: in generation 3 by range, follows a.1
    """)


def test_the_protocol_is_voted_for_among_those_all_support(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 offers=range,sticky,roundrobin -> nothing
        b joins version=3 offers=sticky,range -> nothing
        c joins version=3 offers=cooperative,sticky,range -> nothing
        d joins version=3 offers=cooperative -> d: INCONSISTENT_GROUP_PROTOCOL
        e joins version=3 offers=range type=connect -> e: INCONSISTENT_GROUP_PROTOCOL
        0 ms -> a: in generation 1 by sticky, leads a.1/t b.1/t c.1/t; b: in generation 1 by sticky, follows a.1; c: in generation 1 by sticky, follows a.1
    """)


def test_a_full_group_refuses_new_members(story_type: Any) -> None:
    full = story_type(GroupSettings(group_members_max=2, group_initial_rebalance_delay_ms=0))
    full.tell("""
        a joins -> a: MEMBER_ID_REQUIRED
        b joins version=3 -> nothing
        c joins version=3 -> c: GROUP_MAX_SIZE_REACHED
        a joins -> nothing
        0 ms -> b: in generation 1 by range, leads b.1/t a.1/t; a: in generation 1 by range, follows b.1
    """)


def test_requests_with_old_generations_or_unknown_ids_are_refused(story: Any) -> None:
    story.tell(TWO_IN_GENERATION_1)
    story.tell("""
        a@0 beats -> a@0: ILLEGAL_GENERATION
        a@2 beats -> a@2: ILLEGAL_GENERATION
        a@0 syncs -> a@0: ILLEGAL_GENERATION
        x beats -> x: UNKNOWN_MEMBER_ID
        x syncs -> x: UNKNOWN_MEMBER_ID
        x leaves -> x: UNKNOWN_MEMBER_ID
        x.1 joins -> x.1: UNKNOWN_MEMBER_ID
        b leaves x -> b: gone UNKNOWN_MEMBER_ID
    """)


def test_commits_are_checked_against_state_and_generation(quick_story: Any) -> None:
    quick_story.tell("""
        tool commits alone -> tool: may commit
        a joins version=3 -> nothing
        tool commits alone -> tool: UNKNOWN_MEMBER_ID
        0 ms -> a: in generation 1 by range, leads a.1/t
        a commits -> a: REBALANCE_IN_PROGRESS
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        a commits -> a: may commit
        a@0 commits -> a@0: ILLEGAL_GENERATION
        x@1 commits -> x@1: UNKNOWN_MEMBER_ID
        tool commits alone -> tool: UNKNOWN_MEMBER_ID
        9999 ms -> nothing
        a commits -> a: may commit
        9999 ms -> nothing
        b joins version=3 -> nothing
        a commits -> a: may commit
    """)


def test_assignments_are_sent_only_when_they_are_durable(quick_story: Any) -> None:
    quick_story.tell("""
        disk is slow -> nothing
        a joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A
        a beats -> a: fine
        a syncs a=Z -> a: REBALANCE_IN_PROGRESS
        disk writes -> a: gets A
    """)


def test_assignments_that_cannot_be_written_start_another_rebalance(quick_story: Any) -> None:
    quick_story.tell("""
        disk is slow -> nothing
        a joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A
        disk fails -> a: COORDINATOR_NOT_AVAILABLE
        a beats -> a: REBALANCE_IN_PROGRESS
        a joins -> a: in generation 2 by range, leads a.1/t
        a syncs a=A -> kept: generation 2 a.1=A
        b joins version=3 -> a: REBALANCE_IN_PROGRESS
        disk writes -> nothing
        a beats -> a: REBALANCE_IN_PROGRESS
    """)


STATIC_TWO = """
    a joins static -> nothing
    b joins static -> nothing
    0 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
    a syncs a=A b=B -> kept: generation 1 a.1=A b.1=B; a: gets A
    b syncs -> b: gets B
"""


def test_a_static_member_restarts_without_a_rebalance_and_its_former_process_is_fenced(
    quick_story: Any,
) -> None:
    quick_story.tell(STATIC_TWO)
    quick_story.tell("""
        b joins anew static -> kept: generation 1 a.1=A b.2=B; b: in generation 1 by range, follows a.1
        b syncs -> b: gets B
        b.1 beats -> b.1: FENCED_INSTANCE_ID
        b.1 syncs -> b.1: FENCED_INSTANCE_ID
        b.1 commits -> b.1: FENCED_INSTANCE_ID
        b.1 leaves -> b.1: FENCED_INSTANCE_ID
        b.1 joins static -> b.1: FENCED_INSTANCE_ID
        a beats -> a: fine
    """)


def test_a_restarted_static_leader_does_not_assign_again(quick_story: Any) -> None:
    quick_story.tell(STATIC_TWO)
    quick_story.tell("""
        a joins anew static -> kept: generation 1 a.2=A b.1=B; a: in generation 1 by range, leads a.2/t b.1/t, plans nothing
        a syncs -> a: gets A
        a joins anew static version=8 -> kept: generation 1 a.3=A b.1=B; a: in generation 1 by range, follows a.2
        a syncs -> a: gets A
    """)


def test_the_new_id_of_a_static_member_is_sent_only_when_it_is_durable(quick_story: Any) -> None:
    quick_story.tell(STATIC_TWO)
    quick_story.tell("""
        disk is slow -> nothing
        b joins anew static -> kept: generation 1 a.1=A b.2=B
        b.2 joins anew static -> kept: generation 1 a.1=A b.3=B
        disk writes -> b: FENCED_INSTANCE_ID
        disk fails -> b.2: COORDINATOR_NOT_AVAILABLE
        b.2 beats -> b.2: fine
        b joins anew static -> kept: generation 1 a.1=A b.4=B
        c joins version=3 -> nothing
        disk writes -> nothing
        a joins static -> a: in generation 2 by range, leads a.1/t b.4/t c.1/t; b: in generation 2 by range, follows a.1; c: in generation 2 by range, follows a.1
    """)


def test_an_absent_static_member_stays_until_its_session_ends(quick_story: Any) -> None:
    quick_story.tell("""
        a joins static rebalance=5000 session=30000 -> nothing
        b joins static rebalance=5000 session=30000 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
        a syncs a=A b=B -> kept: generation 1 a.1=A b.1=B; a: gets A
        b syncs -> b: gets B
        a joins static rebalance=5000 session=30000 -> nothing
        5000 ms -> a: in generation 2 by range, leads a.1/t b.1/t
        a syncs a=A b=B -> kept: generation 2 a.1=A b.1=B; a: gets A
        b@1 beats -> b@1: ILLEGAL_GENERATION
    """)


def test_an_administrator_removes_static_members_by_name(quick_story: Any) -> None:
    quick_story.tell(STATIC_TWO)
    quick_story.tell("""
        admin evicts b x -> admin: gone UNKNOWN_MEMBER_ID
        b.1 beats -> b.1: UNKNOWN_MEMBER_ID
        a joins static -> a: in generation 2 by range, leads a.1/t
    """)


def restored_group(**changes: Any) -> GroupRecord:
    rows = tuple(
        MemberRecord(f"{name}.1", None, name, "127.0.0.1", 60_000, 10_000, b"t", name.upper().encode())
        for name in "ab"
    )
    return GroupRecord("consumer", 7, "range", "b.1", 1, rows)


def test_members_continue_with_heartbeats_after_a_restart(story_type: Any) -> None:
    story = story_type(restored=restored_group())
    story.tell("""
        9999 ms -> nothing
        a beats -> a: fine
        b syncs -> b: gets B
        a commits -> a: may commit
        9999 ms -> nothing
        a beats -> a: fine
        1 ms -> nothing
        a beats -> a: REBALANCE_IN_PROGRESS
        a joins -> a: in generation 8 by range, leads a.1/t
    """)


def test_an_empty_group_is_restored_with_its_generation(story_type: Any) -> None:
    story = story_type(restored=GroupRecord("consumer", 12))
    story.tell("""
        a joins version=3 -> nothing
        3000 ms -> a: in generation 13 by range, leads a.1/t
    """)


def test_all_waiting_members_are_answered_when_the_partition_moves(quick_story: Any) -> None:
    quick_story.tell("""
        a joins version=3 -> nothing
        b joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
        b syncs -> nothing
    """)
    quick_story._followed = []
    quick_story._run(quick_story.membership.unload(ErrorCode.NOT_COORDINATOR))
    assert quick_story._followed == ["b: NOT_COORDINATOR"]
    assert quick_story.waiting == {}
    assert quick_story.timers == {}
    assert quick_story.membership.state is GroupState.DEAD


@pytest.mark.parametrize("ending", ["leaves", "silence"])
def test_only_a_group_without_members_can_be_deleted(quick_story: Any, ending: str) -> None:
    quick_story.tell("""
        a joins version=3 -> nothing
        0 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
    """)
    assert quick_story.membership.delete() is ErrorCode.NON_EMPTY_GROUP
    if ending == "leaves":
        quick_story.tell("a leaves -> a: gone; kept: generation 2 without members")
    else:
        quick_story.tell("10000 ms -> kept: generation 2 without members")
    assert quick_story.membership.delete() is ErrorCode.NONE
    quick_story.tell("""
        b joins version=3 -> b: COORDINATOR_NOT_AVAILABLE
        tool commits alone -> tool: COORDINATOR_NOT_AVAILABLE
    """)
    assert quick_story.membership.delete() is ErrorCode.GROUP_ID_NOT_FOUND
