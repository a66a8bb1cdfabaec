"""The initial rebalance delay of an empty group. `Story` in conftest.py describes the lines."""

from __future__ import annotations

from typing import Any


def test_the_initial_delay_is_not_shortened_by_rebalance_timeouts(story: Any) -> None:
    story.tell("""
        a joins version=3 rebalance=1000 -> nothing
        1000 ms -> nothing
        b joins version=3 rebalance=1000 -> nothing
        1999 ms -> nothing
        1 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
    """)


def test_an_emptied_group_has_the_initial_delay_again(story: Any) -> None:
    story.tell("""
        a joins version=3 -> nothing
        3000 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        a leaves -> a: gone; kept: generation 2 without members
        b joins version=3 -> nothing
        2000 ms -> nothing
        c joins version=3 -> nothing
        3999 ms -> nothing
        1 ms -> b: in generation 3 by range, leads b.1/t c.1/t; c: in generation 3 by range, follows b.1
    """)


def test_an_unused_assigned_id_delays_the_group_for_its_session_timeout(
    story: Any,
) -> None:
    story.tell("""
        a joins version=3 -> nothing
        3000 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        b joins session=10000 -> b: MEMBER_ID_REQUIRED
        c joins version=3 -> nothing
        a joins -> nothing
        9999 ms -> nothing
        1 ms -> a: in generation 2 by range, leads a.1/t c.1/t; c: in generation 2 by range, follows a.1
    """)


def test_an_assigned_id_is_not_accepted_with_an_instance_id(story: Any) -> None:
    story.tell("""
        a joins -> a: MEMBER_ID_REQUIRED
        a joins static -> a: INVALID_REQUEST
        a joins -> nothing
    """)
