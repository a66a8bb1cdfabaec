"""Streams: which process may open, commit, trim and close a stream, and the state afterwards.

These are the controller's rules. A model may disable each rule by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NO_NODE: Final = -1


class NotAllowedError(Exception):
    """The protocol does not allow a step; the message names the rule."""


class Stream(NamedTuple):
    """A stream: owner, epochs, and committed offsets [start, end). `node_epoch` is the owner's node epoch at
    the opening.
    """

    open: bool = False
    epoch: int = -1
    node: int = NO_NODE
    node_epoch: int = -1
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The rules; a model may disable each.

    Attributes:
        callers_node_epoch: only the newest process of a node may act.
        epoch_rises: a stream is opened at an epoch above all earlier ones.
        closed_before_open: an open stream is not opened.
        commit_names_epoch: a commit names the epoch of the open stream.
        commit_by_owner: a commit comes from the owner's node, while the stream is open.
        commit_continues: a commit begins at the end of the previous one.
        close_names_epoch: a close names the epoch that it ends.
        close_names_end: a close names the committed end.
    """

    callers_node_epoch: bool = True
    epoch_rises: bool = True
    closed_before_open: bool = True
    commit_names_epoch: bool = True
    commit_by_owner: bool = True
    commit_continues: bool = True
    close_names_epoch: bool = True
    close_names_end: bool = True


ALL_RULES: Final = StreamRules()


def require_newest(node: int, node_epoch: int, newest: int | None, rules: StreamRules = ALL_RULES) -> None:
    """Check that the caller is the newest process of its node.

    Raises:
        NotAllowedError: the caller is not the newest process.
    """
    if rules.callers_node_epoch and node_epoch != newest:
        raise NotAllowedError(
            f"node {node} acts at node epoch {node_epoch}, but its newest epoch is {newest}"
        )


def opened(stream: Stream, epoch: int, node: int, node_epoch: int, rules: StreamRules = ALL_RULES) -> Stream:
    """The stream under a new owner.

    Raises:
        NotAllowedError: it is open, or the epoch does not rise.
    """
    if rules.epoch_rises and epoch <= stream.epoch:
        raise NotAllowedError(f"a stream is opened at epoch {epoch} after epoch {stream.epoch}")
    if rules.closed_before_open and stream.open:
        raise NotAllowedError(
            f"node {node} opens a stream at epoch {epoch}, but it is open at epoch {stream.epoch} of"
            f" node {stream.node}"
        )
    return Stream(True, epoch, node, node_epoch, stream.start, stream.end)


def committed(
    stream: Stream, node: int, start: int, end: int, epoch: int | None = None, rules: StreamRules = ALL_RULES
) -> Stream:
    """The stream with [start, end) committed; `epoch` is the epoch in the writer's request, None if unknown.

    Raises:
        NotAllowedError: the stream is closed, the caller is not the owner, the epoch differs, or the offsets
            leave a gap or overlap.
    """
    if rules.commit_by_owner and not stream.open:
        raise NotAllowedError(f"node {node} commits [{start}, {end}) of a closed stream")
    if rules.commit_by_owner and stream.node != node:
        raise NotAllowedError(
            f"node {node} commits [{start}, {end}) of a stream that is open at node {stream.node}"
        )
    if rules.commit_names_epoch and epoch is not None and epoch != stream.epoch:
        raise NotAllowedError(f"a commit names epoch {epoch}, but the stream is at epoch {stream.epoch}")
    if rules.commit_continues and start != stream.end:
        raise NotAllowedError(
            f"a commit of [{start}, {end}) does not begin at the end of the stream, {stream.end}"
        )
    if start >= end:
        raise NotAllowedError(f"a commit of [{start}, {end}) is empty")
    return stream._replace(end=end)


def closed(
    stream: Stream, node: int, epoch: int, end: int | None = None, rules: StreamRules = ALL_RULES
) -> Stream:
    """The stream after its owner closed it; `end` is the end in the owner's request, None if unknown.

    Raises:
        NotAllowedError: the stream is closed, the caller is not the owner, or the epoch or the end differs.
    """
    if not stream.open:
        raise NotAllowedError(f"node {node} closes a stream that is closed")
    if stream.node != node:
        raise NotAllowedError(f"node {node} closes a stream that is open at node {stream.node}")
    if rules.close_names_epoch and epoch != stream.epoch:
        raise NotAllowedError(f"a close names epoch {epoch}, but the stream is at epoch {stream.epoch}")
    if rules.close_names_end and end is not None and end != stream.end:
        raise NotAllowedError(f"a close names the end {end}, but the stream ends at {stream.end}")
    return stream._replace(open=False)


def trimmed(stream: Stream, start: int) -> Stream:
    """The stream with a higher start.

    Raises:
        NotAllowedError: the start does not rise, or is beyond the end.
    """
    if not stream.start < start <= stream.end:
        raise NotAllowedError(
            f"a stream is trimmed to {start}, which is outside of ({stream.start}, {stream.end}]"
        )
    return stream._replace(start=start)
