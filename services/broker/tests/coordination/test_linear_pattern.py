"""Regular expressions of clients: compared with Python's engine, and with bounded steps and memory."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.coordination import linear_pattern
from ponor_broker.coordination.linear_pattern import VISITED_PER_STEP, LinearPattern, PatternError
from ponor_runtime.turns import at_once

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "c",
        ".",
        "[ab]",
        "[^a]",
        "[b-d]",
        "\\d",
        "\\w",
        "\\S",
        "\\.",
        "-",
        "^",
        "$",
        "[]a]",
        "[a\\d-]",
    ]
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(inner, repeats).map(lambda both: f"(?:{both[0]}){both[1]}"),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"(?i:{one})"),
    )


PATTERNS = st.recursive(ATOMS, grown, max_leaves=8)


@settings(max_examples=500, deadline=None)
@given(PATTERNS, st.text("abcdAB.-1 \n", max_size=6))
def test_matches_what_python_matches(pattern: str, text: str) -> None:
    # In Python `$` also precedes a final newline.
    python = re.compile(pattern.replace("$", "\\Z"), re.ASCII)

    assert at_once(LinearPattern(pattern).matches(text)) == (python.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", "", "a"),
        ("app-.*", "app-1", "xapp-1"),
        ("a|", "", "b"),
        ("(?i)Pay-[A-C]+", "pAY-abc", "pay-d"),
        ("(?s).", "\n", ""),
        (".", "ä", "\n"),
        ("\\Qa.b\\E+", "a.bb", "axb"),
        ("\\x41\\x{1F600}", "A\U0001f600", "A"),
        ("a{,2}", "a{,2}", "aa"),
        ("a{2}b{1,}", "aab", "ab"),
        ("(?P<name>x)(?<other>y)", "xy", "x"),
        ("[\\W]", "-", "a"),
        ("[^\\D]", "7", "x"),
        ("\\Aa\\z", "a", "aa"),
        ("a^b", "never", "ab"),
        ("[a-]", "-", "b"),
    ],
)
def test_syntax(pattern: str, yes: str, no: str) -> None:
    compiled = LinearPattern(pattern)

    assert at_once(compiled.matches(yes)) or yes == "never"
    assert not at_once(compiled.matches(no))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(",
        r")",
        r"a**",
        r"*a",
        r"a{2,1}",
        r"a{1001}",
        r"[a",
        r"[z-a]",
        "\\",
        r"\p{L}",
        r"\1",
        r"\b",
        r"(?m)a",
        r"[[:alpha:]]",
        r"(?=a)",
        r"a*+",
        r"\x{110000}",
        "(" * 60 + ")" * 60,
        "a" * 1_001,
        "((a{100}){100}){100}",
        "(((((){1000}){1000}){1000}){1000}){1000}",
    ],
)
def test_invalid_or_unsupported(pattern: str) -> None:
    with pytest.raises(PatternError):
        LinearPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "(.*)*(.*)*(.*)*b", "(a?){50}a{50}"])
def test_steps_grow_with_the_text_only(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = LinearPattern(pattern)
    steps = 0
    after = LinearPattern._after

    def counted(self: LinearPattern, states: frozenset[int], char: str) -> frozenset[int]:
        nonlocal steps
        steps += 1
        return after(self, states, char)

    monkeypatch.setattr(LinearPattern, "_after", counted)
    at_once(compiled.matches("a" * 5_000))

    assert steps <= 110, "the automaton has few states, and each of its transitions is computed once"


def test_memory_of_the_automaton_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_pattern, "CACHED_MAX", 40)
    compiled = LinearPattern("[^z]*x")

    assert at_once(compiled.matches("".join(map(chr, range(200, 400))) + "x"))
    assert len(compiled._transitions) <= 10


def test_long_matches_yield() -> None:
    compiled = LinearPattern("(a|b)*a(a|b){200}")
    text = "".join(random.Random(1).choices("ab", k=1_000))

    steps = sum(1 for _ in compiled.matches(text))

    assert steps >= 1_000 * 200 // VISITED_PER_STEP // 4


def test_matches_of_many_texts_yield() -> None:
    compiled = LinearPattern("(a|b)*a(a|b){40}")
    texts = ["".join(random.Random(number).choices("ab", k=40)) for number in range(20)]

    steps = sum(1 for text in texts for _ in compiled.matches(text))

    assert steps >= 20 * 40 * 20 // VISITED_PER_STEP // 2
