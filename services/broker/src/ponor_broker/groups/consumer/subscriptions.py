"""The subscribed topics of a consumer group, by name and by expression, and the epoch that follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ponor_broker.groups.consumer import expressions
from ponor_broker.groups.consumer.expressions import REFRESH_MS, Matches, Resolution
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    EpochEntry,
    EpochKey,
    ExpressionEntry,
    ExpressionKey,
    GroupEpoch,
    ResolvedExpression,
)
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.topics import ImageTopics, Topic, existing, hash_of
from ponor_broker.groups.outcome import Draft

_UNKNOWN_VERSION: Final = -1
TOPICS_PER_PART: Final = 2_000
"""Names of topics in one write of resolved expressions; one expression may have more."""


class Subscriptions:
    """The subscribed topics that exist, at a version of the image."""

    def __init__(
        self,
        group_id: str,
        contents: ConsumerState,
        settings: ConsumerSettings,
        topics: ImageTopics,
        admits: Callable[[int], bool],
    ) -> None:
        self._group_id = group_id
        self._contents = contents
        self._settings = settings
        self._topics = topics
        self._admits = admits
        self.known: Mapping[str, Topic] = {}
        """The subscribed topics that exist, at the version of the last look-up; for reading only."""
        self._version = _UNKNOWN_VERSION
        self._hash = 0
        self._looked_up: set[str] = set()
        """The names of the last look-up."""
        self._is_resolving = False
        self._is_long = False
        """Whether an event could not resolve all expressions itself."""
        self._failed_ms: int | None = None
        """When the last resolution could not be stored."""

    def names(self) -> set[str]:
        """Return the names of the topics to which members subscribe."""
        names = set(self._contents.subscriptions)
        for expression in self._contents.expression_users:
            resolved = self._contents.expressions.get(expression)
            names.update(() if resolved is None else resolved.topics)
        return names

    def looked_up(self) -> Mapping[str, Topic]:
        """Return the subscribed topics that exist, after a load or an undone event, too."""
        if self._version == _UNKNOWN_VERSION:
            self._look_up()
        return self.known

    def forget(self) -> None:
        """Look up all topics again with the next event, because an event was undone."""
        self._version = _UNKNOWN_VERSION

    # --- epoch

    def refresh(self, draft: Draft[ConsumerEntry], now_ms: int, *, changed: bool) -> None:
        """Raise the group epoch if the subscription of a member or a subscribed topic changed."""
        is_known = self._version == self._topics.version
        if is_known and not changed and not self._to_resolve(now_ms):
            return
        self._resolve_now(draft, now_ms)
        self._look_up()
        if changed or self._hash != self._contents.topics_hash:
            self._put_next_epoch(draft)

    def raise_epoch(self, draft: Draft[ConsumerEntry]) -> None:
        """Raise the group epoch, because a member left."""
        self._look_up()
        self._put_next_epoch(draft)

    def _look_up(self) -> None:
        """Look up the subscribed topics, unless members only joined or left with topics of other members."""
        names = self.names()
        if self._version == self._topics.version and names == self._looked_up:
            return
        self._version, self._looked_up = self._topics.version, names
        known = existing(self._topics, names)
        if known != self.known:
            self.known, self._hash = known, hash_of(known)

    def _put_next_epoch(self, draft: Draft[ConsumerEntry]) -> None:
        epoch = GroupEpoch(self._contents.group_epoch + 1, self._hash)
        draft.put(EpochEntry(EpochKey(self._group_id), epoch))

    # --- regular expressions

    def drop_unused(self, former: ConsumerMember | None, draft: Draft[ConsumerEntry]) -> None:
        """Remove the expression of a member that left or changed, if no other member has it."""
        expression = None if former is None else former.expression
        is_used = expression in self._contents.expression_users
        if expression and expression in self._contents.expressions and not is_used:
            draft.put(ExpressionEntry(ExpressionKey(self._group_id, expression), None))

    def _to_resolve(self, now_ms: int) -> list[str]:
        """Return the expressions that are new, or outdated and not resolved for a while."""
        if self._is_resolving or _is_recent(self._failed_ms, now_ms):
            return []
        return [text for text in self._contents.expression_users if self._is_due(text, now_ms)]

    def _is_due(self, expression: str, now_ms: int) -> bool:
        resolved = self._contents.expressions.get(expression)
        if resolved is None:
            return True
        return resolved.version < self._topics.version and not _is_recent(resolved.resolved_ms, now_ms)

    def _resolve_now(self, draft: Draft[ConsumerEntry], now_ms: int) -> None:
        """Resolve expressions within this event, if there are few topics and the expressions are simple."""
        texts = () if self._is_long else self._to_resolve(now_ms)
        names = self._topics.names() if texts else ()
        if not texts or len(texts) * len(names) > self._settings.matched_at_once_max:
            return
        matches = expressions.resolve_at_once(texts, names)
        if matches is None:
            self._is_long = True
            return
        before = len(draft.entries)
        for text, found in matches.items():
            self._put_match(draft, text, ResolvedExpression(found, self._topics.version, now_ms))
        if not self._admits(draft.growth_bytes):
            draft.take_back(before)
            self._failed_ms = now_ms

    def needs_resolution(self, now_ms: int) -> bool:
        """Whether expressions must be resolved."""
        return bool(self._to_resolve(now_ms))

    def begin_resolution(self, now_ms: int) -> Resolution:
        """Start to resolve expressions. The caller runs the steps and calls `resolved`."""
        texts = self._to_resolve(now_ms)
        self._is_resolving = True
        return Resolution(self._topics.version, expressions.resolve(texts, self._topics.names()))

    def resolved(
        self, resolution: Resolution, matches: Matches, now_ms: int
    ) -> Iterator[Draft[ConsumerEntry]]:
        """Yield parts of the result, each of which the caller writes before it takes the next one. The last
        part raises the group epoch. A part for which there is no memory is left out, and resolved later.
        """
        part: Draft[ConsumerEntry] = Draft(self._contents)
        topics = 0
        for text, found in matches.items():
            before = len(part.entries)
            self._put_match(part, text, ResolvedExpression(found, resolution.version, now_ms))
            if not self._admits(part.growth_bytes):
                part.take_back(before)
                self._failed_ms = now_ms
            topics += 1 + len(found)
            if topics >= TOPICS_PER_PART:
                yield part
                part, topics = Draft(self._contents), 0
        self._is_resolving = self._is_long = False
        self._look_up()
        if self._hash != self._contents.topics_hash:
            self._put_next_epoch(part)
        yield part

    def delay_resolution(self, now_ms: int) -> None:
        """Resolve nothing for a while, because a part of a result was not written."""
        self._is_resolving = False
        self._failed_ms = now_ms

    def _put_match(self, draft: Draft[ConsumerEntry], text: str, resolved: ResolvedExpression) -> None:
        if text in self._contents.expression_users:
            draft.put(ExpressionEntry(ExpressionKey(self._group_id, text), resolved))


def _is_recent(then_ms: int | None, now_ms: int) -> bool:
    """Return whether less than `REFRESH_MS` have passed. The wall clock may have been set back."""
    return then_ms is not None and abs(now_ms - then_ms) < REFRESH_MS
