"""How an empty group gathers its members, told as stories. How to read a line: see `Story` in conftest.py."""

from __future__ import annotations

from typing import Any


def test_the_first_delay_is_whole_even_for_members_with_less_patience(story: Any) -> None:
    story.tell("""
        a joins version=3 rebalance=1000 -> nothing
        1000 ms -> nothing
        b joins version=3 rebalance=1000 -> nothing
        1999 ms -> nothing
        1 ms -> a: in generation 1 by range, leads a.1/t b.1/t; b: in generation 1 by range, follows a.1
    """)


def test_a_group_that_became_empty_gathers_like_a_new_one(story: Any) -> None:
    story.tell("""
        a joins version=3 -> nothing
        3000 ms -> a: in generation 1 by range, leads a.1/t
        a syncs a=A -> kept: generation 1 a.1=A; a: gets A
        a leaves -> a: gone; kept: generation 2 of nobody
        b joins version=3 -> nothing
        2000 ms -> nothing
        c joins version=3 -> nothing
        3999 ms -> nothing
        1 ms -> b: in generation 3 by range, leads b.1/t c.1/t; c: in generation 3 by range, follows b.1
    """)


def test_a_client_that_took_an_id_and_went_away_holds_the_others_up_for_its_session_and_no_longer(
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


def test_an_id_that_was_handed_out_is_not_taken_under_a_static_name(story: Any) -> None:
    story.tell("""
        a joins -> a: MEMBER_ID_REQUIRED
        a joins static -> a: INVALID_REQUEST
        a joins -> nothing
    """)
