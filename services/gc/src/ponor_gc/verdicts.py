"""Decide from a key and the metadata whether an object may be deleted. No I/O.

The proof: the counter assigns an id once, the object has a row from then until its deletion is confirmed, and
the row never returns. An object without a row whose id is below the counter is therefore permanently dead: no
reader uses it and no commit accepts it. The minimum age is not part of the proof; it limits the damage of an
error in the proof.
"""

from __future__ import annotations

from enum import Enum

from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import ClusterRow
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import ObjectId, cluster_of_id
from ponor_runtime.object_store import ObjectInfo, OpenMultipart
from s3stream.objects.keys import parse_object_key


class Verdict(Enum):
    """Verdict about a key. Only DEAD objects are deleted."""

    KNOWN = "known"
    """The metadata has a row for the object: the object is live, or a claim will collect it."""
    FUTURE = "future"
    """The controllers had not assigned the object's id when the metadata was read."""
    YOUNG = "young"
    """Dead, but younger than the minimum age, or of unknown age."""
    STRANGE = "strange"
    """No object of this cluster can have this key."""
    OTHERS = "others"
    """The key of the upload belongs to another cluster, or is not an object key."""
    DEAD = "dead"


def judge_object(info: ObjectInfo, view: View, cluster: ClusterRow, put_before_ms: int) -> Verdict:
    """Judge one listed object under this cluster's prefixes; objects put after `put_before_ms` are young."""
    object_id = _own_id(info.key, cluster)
    if object_id is None:
        return Verdict.STRANGE
    if object_id in view[OBJECTS]:
        return Verdict.KNOWN
    if object_id >= counters.next_value(view, counters.OBJECT):
        return Verdict.FUTURE
    return _by_age(info.modified_at_ms, put_before_ms)


def judge_upload(upload: OpenMultipart, view: View, cluster: ClusterRow, begun_before_ms: int) -> Verdict:
    """Judge one open multipart upload. An open upload to the key of a committed object is garbage."""
    object_id = _own_id(upload.key, cluster)
    if object_id is None:
        return Verdict.OTHERS
    row = view[OBJECTS].get(object_id)
    if row is not None and row.state is ObjectState.PREPARED:
        return Verdict.KNOWN
    if row is None and object_id >= counters.next_value(view, counters.OBJECT):
        return Verdict.FUTURE
    return _by_age(upload.begun_at_ms, begun_before_ms)


def is_own_key(key: str, cluster: ClusterRow) -> bool:
    """Return whether this cluster assigns the key."""
    return _own_id(key, cluster) is not None


def _own_id(key: str, cluster: ClusterRow) -> ObjectId | None:
    """Return the object id, or None if this cluster does not assign such keys."""
    try:
        namespace, object_id = parse_object_key(key)
    except ValueError:
        return None
    # The counter does not cover ids that another cluster assigned.
    is_own = namespace == cluster.namespace and cluster_of_id(object_id) == cluster.cluster_ordinal
    return object_id if is_own else None


def _by_age(happened_at_ms: int | None, before_ms: int) -> Verdict:
    return Verdict.DEAD if happened_at_ms is not None and happened_at_ms < before_ms else Verdict.YOUNG
