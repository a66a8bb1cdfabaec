r"""Matcher for regular expressions that clients send, in time proportional to the length of the text.

Kafka's brokers use RE2/J for such expressions. Python's `re` backtracks: a short expression can take years on
a short text, and blocks the event loop in the meantime. This module uses Thompson's construction and builds
the deterministic automaton on demand (Cox, "Regular Expression Matching Can Be Simple And Fast").

The syntax is RE2's, except named classes (`\p{L}`, `[[:alpha:]]`), word boundaries and the flags `m` and `U`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.turns import Steps

PATTERN_CHARS_MAX: Final = 1_000
DEPTH_MAX: Final = 50
REPEATS_MAX: Final = 1_000
"""The largest count of a repetition, as in RE2."""
STATES_MAX: Final = 1_000
"""States of an expression. The compiler copies a part once for each of its counted repetitions."""
NODES_MAX: Final = 10 * STATES_MAX
"""Parts of an expression, including the copies. Empty parts have no state, so this is a bound of its own."""
CACHED_MAX: Final = 200_000
"""States in the cached transitions, about 20 MB; at the bound, the cache is cleared."""
VISITED_PER_STEP: Final = 2_000
"""States that one step visits, in one text or several: about 2 ms."""
CACHED_CHARS_PER_STATE: Final = 8
"""Characters with a cached transition that take as long as the visit of one state."""

_COUNT: Final = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_HEX: Final = re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\}")
_NAME: Final = re.compile(r"P?<\w+>")
_FLAGS: Final = re.compile(r"([is]+)([:)])")
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_Ranges: TypeAlias = tuple[tuple[str, str], ...]
_CLASSES: Final[dict[str, _Ranges]] = {
    "d": (("0", "9"),),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
}


class PatternError(ValueError):
    """An expression is invalid, too large, or of unsupported syntax."""


@dataclass(frozen=True, slots=True)
class _Chars:
    """A set of characters: the characters in `ranges`, and all characters outside of a class in `without`.
    With `is_negated`, all other characters; with `is_folded`, case does not matter.
    """

    ranges: _Ranges = ()
    without: tuple[_Ranges, ...] = ()
    is_negated: bool = False
    is_folded: bool = False

    def contains(self, char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if self.is_folded else {char}
        return any(map(self._contains, forms)) is not self.is_negated

    def _contains(self, char: str) -> bool:
        return _within(char, self.ranges) or any(not _within(char, ranges) for ranges in self.without)


@dataclass(frozen=True, slots=True)
class _Edge:
    """The beginning or the end of the text."""

    is_end: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    node: _Node
    least: int
    most: int | None


_Node: TypeAlias = _Chars | _Edge | _Sequence | _Choice | _Repeat


def _within(char: str, ranges: _Ranges) -> bool:
    return any(low <= char <= high for low, high in ranges)


class _Parser:
    """Recursive descent: choice, sequence, repetition, atom."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._is_folded = False
        self._dot_is_all = False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("missing opening (")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise PatternError("the expression ends too early")
        self._at += 1
        return char

    def _takes(self, expected: str) -> bool:
        is_there = self._text.startswith(expected, self._at)
        self._at += len(expected) if is_there else 0
        return is_there

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError(f"groups are nested deeper than {DEPTH_MAX}")
        flags = self._is_folded, self._dot_is_all
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        self._is_folded, self._dot_is_all = flags
        self._depth -= 1
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            if self._takes("\\Q"):
                quoted, end, _ = self._text[self._at :].partition("\\E")
                self._at += len(quoted) + len(end)
                literals = [self._literal(one) for one in quoted]
                parts.extend(literals[:-1])
                parts.extend(map(self._repeated, literals[-1:]))
            else:
                atom = self._atom()
                if atom is not None:
                    parts.append(self._repeated(atom))
        return _Sequence(tuple(parts))

    def _repeated(self, atom: _Node) -> _Node:
        counts = self._counts()
        if counts is None:
            return atom
        self._takes("?")  # a lazy repetition matches the same texts
        if self._peek() and (self._peek() in "*+?" or _COUNT.match(self._text, self._at)):
            raise PatternError("bad repetition operator")
        return _Repeat(atom, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return counts
        match = _COUNT.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        least = int(match[1])
        most = None if match[2] and not match[3] else int(match[3] or match[1])
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise PatternError("bad repeat count")
        return least, most

    def _atom(self) -> _Node | None:
        """Return the next atom; None after a group that only sets flags."""
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == ".":
            return _Chars((), ((),)) if self._dot_is_all else _Chars((), ((("\n", "\n"),),))
        if char in "^$":
            return _Edge(is_end=char == "$")
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise PatternError("missing argument to repetition operator")
        return self._literal(char)

    def _literal(self, char: str) -> _Chars:
        return _Chars(((char, char),), is_folded=self._is_folded)

    def _group(self) -> _Node | None:
        flags = None
        if self._takes("?") and not self._takes(":"):
            name = _NAME.match(self._text, self._at)
            flags = None if name else _FLAGS.match(self._text, self._at)
            end = name or flags
            if end is None:
                raise PatternError("invalid or unsupported group")
            self._at = end.end()
        before = self._is_folded, self._dot_is_all
        if flags is not None:
            self._is_folded |= "i" in flags[1]
            self._dot_is_all |= "s" in flags[1]
            if flags[2] == ")":
                return None  # the flags apply until the end of the enclosing group
        node = self._choice()
        self._is_folded, self._dot_is_all = before
        if not self._takes(")"):
            raise PatternError("missing closing )")
        return node

    def _escape(self) -> _Node:
        char = self._take()
        if char in "Az":
            return _Edge(is_end=char == "z")
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return _Chars(ranges) if char.islower() else _Chars((), (ranges,))
        return self._literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x" and (match := _HEX.match(self._text, self._at)):
            self._at = match.end()
            code = int(match[1] or match[2], 16)
            if code <= 0x10FFFF:
                return chr(code)
        if char.isalnum() or ord(char) >= 0x80:
            raise PatternError(f"invalid or unsupported escape \\{char}")
        return char

    def _set(self) -> _Node:
        is_negated = self._takes("^")
        ranges: list[tuple[str, str]] = []
        without: list[_Ranges] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._takes("[:"):
                raise PatternError("named character classes are not supported")
            low = self._take()
            if low == "\\":
                escaped = self._take()
                if escaped.lower() in _CLASSES:
                    of_class = _CLASSES[escaped.lower()]
                    ranges.extend(of_class if escaped.islower() else ())
                    without.extend(() if escaped.islower() else (of_class,))
                    continue
                low = self._escaped(escaped)
            ranges.append((low, self._high_of(low)))
        self._at += 1
        return _Chars(tuple(ranges), tuple(without), is_negated, self._is_folded)

    def _high_of(self, low: str) -> str:
        """Return the last character of the range that begins with `low`; `low` if no range follows."""
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"]", ""}:
            return low
        self._at += 1
        high = self._take()
        if high == "\\":
            high = self._escaped(self._take())
        if high < low:
            raise PatternError("bad character class range")
        return high


_MATCH: Final = 0


class LinearPattern:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """Compile.

        Raises:
            PatternError: the expression is invalid, too large, or of unsupported syntax.
        """
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"the expression has more than {PATTERN_CHARS_MAX} characters")
        self._steps: list[tuple[_Chars | _Edge | None, tuple[int, ...]]] = [(None, ())]
        """For each state: which characters it consumes (None: none), and the states that follow it."""
        self._nodes = 0
        start = self._compile(_Parser(text).parse(), _MATCH)
        self._transitions: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._cached = 0
        self._visited = 0
        """States visited since the last step ended, in all texts."""
        self._first = self._closure([start], at_begin=True)

    def matches(self, text: str) -> Steps[bool]:
        """Return whether the whole text matches."""
        states = self._first
        self._visited += 1 + len(text) // CACHED_CHARS_PER_STATE
        for char in text:
            found = self._transitions.get((states, char))
            if found is None:
                self._visited += len(states)
                if self._visited > VISITED_PER_STEP:
                    self._visited = 0
                    yield
                found = self._after(states, char)
                self._keep(states, char, found)
            if not found:
                return False
            states = found
        self._visited += len(states)
        return _MATCH in self._closure(states, at_begin=not text, at_end=True)

    def _keep(self, states: frozenset[int], char: str, found: frozenset[int]) -> None:
        self._cached += len(found) + 1
        if self._cached > CACHED_MAX:
            self._transitions.clear()
            self._cached = len(found) + 1
        self._transitions[states, char] = found

    def _after(self, states: frozenset[int], char: str) -> frozenset[int]:
        targets: list[int] = []
        for state in states:
            chars, then = self._steps[state]
            if isinstance(chars, _Chars) and chars.contains(char):
                targets.extend(then)
        return self._closure(targets)

    def _closure(
        self, states: frozenset[int] | list[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Return the states, and all states that they reach without consuming a character."""
        reached = set(states)
        open_states = list(states)
        while open_states:
            by, then = self._steps[open_states.pop()]
            is_open = by is None or (isinstance(by, _Edge) and (at_end if by.is_end else at_begin))
            if is_open:
                fresh = [state for state in then if state not in reached]
                reached.update(fresh)
                open_states.extend(fresh)
        return frozenset(reached)

    def _state(self, by: _Chars | _Edge | None, *then: int) -> int:
        if len(self._steps) >= STATES_MAX:
            raise PatternError("the expression is too large")
        self._steps.append((by, then))
        return len(self._steps) - 1

    def _compile(self, node: _Node, then: int) -> int:
        """Add the states of a node that is followed by state `then`; return its first state."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise PatternError("the expression is too large")
        match node:
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case _Choice(options):
                return self._state(None, *[self._compile(option, then) for option in options])
            case _Repeat(inner, least, most):
                if most is None:
                    loop = self._state(None, then)
                    self._steps[loop] = (None, (self._compile(inner, loop), then))
                    then = loop
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._state(None, self._compile(inner, then), end)
                for _ in range(least):
                    then = self._compile(inner, then)
                return then
        return self._state(node, then)
