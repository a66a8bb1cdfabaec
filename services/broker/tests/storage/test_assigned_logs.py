"""Assignments of logs to recover, from the image."""

from __future__ import annotations

from ponor_broker.storage.recoverer import Assignment, assigned_to, is_reassigned, row_of
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import NodeEpoch, NodeId

OWNER, MINE, OTHER = NodeId(7), NodeId(8), NodeId(9)
EPOCH = NodeEpoch(4)


def image_with(*rows: WalRow) -> MetadataImage:
    image = MetadataImage()
    for row in rows:
        image[WALS].put(row)
    return image


def log(epoch: int, recoverer: NodeId, recoverer_epoch: int, token: int = 1) -> WalRow:
    return WalRow(OWNER, NodeEpoch(epoch), 10, recoverer, NodeEpoch(recoverer_epoch), token)


def test_only_logs_assigned_to_this_process_are_recovered() -> None:
    image = image_with(log(1, MINE, 4), log(2, MINE, 3), log(3, OTHER, 4), log(4, MINE, 4, token=2))
    assert assigned_to(image, MINE, EPOCH) == [
        Assignment(OWNER, NodeEpoch(1), 1),
        Assignment(OWNER, NodeEpoch(4), 2),
    ]


def test_an_assignment_ends_when_the_log_is_closed_or_reassigned() -> None:
    row = log(1, MINE, 4)
    image = image_with(row)
    (assignment,) = assigned_to(image, MINE, EPOCH)
    assert row_of(image, assignment) == row
    image[WALS].put(row._replace(trim_sequence=20))
    moved = row_of(image, assignment)
    assert moved is not None
    assert moved.trim_sequence == 20, "a retry begins where the last attempt had come to"
    assert not is_reassigned(image, assignment)
    image[WALS].put(log(1, OTHER, 9, token=2))
    assert row_of(image, assignment) is None
    assert is_reassigned(image, assignment)
    image[WALS].delete((OWNER, NodeEpoch(1)))
    assert row_of(image, assignment) is None
    assert not is_reassigned(image, assignment), "its slots may still have to be deleted"


def test_a_log_assigned_again_is_a_new_assignment() -> None:
    first = assigned_to(image_with(log(1, MINE, 4, token=1)), MINE, EPOCH)
    assert assigned_to(image_with(log(1, MINE, 4, token=3)), MINE, EPOCH) != first
