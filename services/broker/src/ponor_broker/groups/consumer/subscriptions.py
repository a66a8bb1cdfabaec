"""The subscribed topics of a consumer group, by name and by expression, and the epoch that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor_runtime.turns import at_once

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


class Subscriptions:
    """The subscribed topics that exist, at a version of the image."""

    def __init__(
        self, group_id: str, contents: ConsumerState, settings: ConsumerSettings, topics: ImageTopics
    ) -> None:
        self._group_id = group_id
        self._contents = contents
        self._settings = settings
        self._topics = topics
        self.known: Mapping[str, Topic] = {}
        """The subscribed topics that exist, at the version of the last look-up; for reading only."""
        self._version = _UNKNOWN_VERSION
        self._hash = 0
        self._looked_up: set[str] = set()
        """The names of the last look-up."""
        self._is_resolving = False

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
        self.known = existing(self._topics, names)
        self._hash = hash_of(self.known)

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
        """Return the expressions that are new, or all that are outdated if the last time is long ago."""
        contents, version = self._contents, self._topics.version
        if self._is_resolving or not contents.expression_users:
            return []
        fresh = [each for each in contents.expression_users if each not in contents.expressions]
        last_ms = max((each.resolved_ms for each in contents.expressions.values()), default=now_ms)
        if abs(now_ms - last_ms) < REFRESH_MS:
            return fresh
        outdated = [text for text, each in contents.expressions.items() if each.version < version]
        return fresh + outdated

    def _resolve_now(self, draft: Draft[ConsumerEntry], now_ms: int) -> None:
        """Resolve expressions within this event, if there are few topics."""
        texts = self._to_resolve(now_ms)
        names = self._topics.names() if texts else ()
        if texts and len(texts) * len(names) <= self._settings.matched_at_once_max:
            matches = at_once(expressions.resolve(texts, names))
            self._put_matches(draft, matches, self._topics.version, now_ms)

    def needs_resolution(self, now_ms: int) -> bool:
        """Whether expressions must be resolved."""
        return bool(self._to_resolve(now_ms))

    def begin_resolution(self, now_ms: int) -> Resolution:
        """Start to resolve expressions. The caller runs the steps and calls `resolved`."""
        texts = self._to_resolve(now_ms)
        assert texts
        self._is_resolving = True
        return Resolution(self._topics.version, expressions.resolve(texts, self._topics.names()))

    def resolved(
        self, draft: Draft[ConsumerEntry], resolution: Resolution, matches: Matches, now_ms: int
    ) -> None:
        """Store which topics match."""
        self._is_resolving = False
        self._put_matches(draft, matches, resolution.version, now_ms)
        self._look_up()
        if self._hash != self._contents.topics_hash:
            self._put_next_epoch(draft)

    def _put_matches(self, draft: Draft[ConsumerEntry], matches: Matches, version: int, now_ms: int) -> None:
        for text, names in matches.items():
            if text in self._contents.expression_users:
                key = ExpressionKey(self._group_id, text)
                draft.put(ExpressionEntry(key, ResolvedExpression(names, version, now_ms)))
