"""The compiled hash of a string is Java's `String.hashCode()`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ponor_kafka.java_hash import java_string_hash


def by_definition(text: str) -> int:
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]
    hashed: int = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    return (hashed + (1 << 31)) % (1 << 32) - (1 << 31)


@given(st.text(st.characters(), max_size=40))
@example("\ud83d")
@example("\uffff\U00010000\U0010ffff")
@example("console-consumer-12345")
def test_the_hash_follows_its_definition(text: str) -> None:
    assert java_string_hash(text) == by_definition(text)


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", -(1 << 31)),
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_hashes_of_java(text: str, hashed: int) -> None:
    assert java_string_hash(text) == hashed == by_definition(text)
