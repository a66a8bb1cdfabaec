"""What may be deleted: a key, what the metadata say, a verdict. Pure.

What lives here: the proof that an object is dead. An id is given once, by the counter; its row is there from then on until the deletion was confirmed, and never comes
back. So an id below the counter without a row is dead, and stays dead whatever happens later: nobody reads it, and no commit will take it. Everything else is left alone.
The age is no part of the proof. It is there for the day on which the proof has a bug.
"""

from __future__ import annotations

from enum import Enum

from ponor_metadata import counters
from ponor_metadata.rows import ClusterRow, ObjectState
from ponor_metadata.view import View
from ponor_runtime.identity import ObjectId, cluster_of_id
from ponor_runtime.object_store import ObjectInfo, OpenMultipart
from s3stream.objects.keys import parse_object_key


class Verdict(Enum):
    """Where a key stands. Only DEAD is deleted."""

    KNOWN = "known"
    """The metadata have a row of it, in whatever state: it lives, or is collected in the ordinary way."""
    FUTURE = "future"
    """Its id was not given when the metadata were read, or is being given now."""
    YOUNG = "young"
    """Dead, and not old enough; or the store does not say how old."""
    STRANGE = "strange"
    """No object of ours can have this key."""
    OTHERS = "others"
    """Of another namespace, or no object at all: not ours to judge."""
    DEAD = "dead"


def judge_object(info: ObjectInfo, view: View, cluster: ClusterRow, put_before_ms: int) -> Verdict:
    """About one row of a listing of our objects. `put_before_ms`: what was put later is young."""
    object_id = _own_id(info.key, cluster)
    if object_id is None:
        return Verdict.STRANGE
    if object_id in view.objects:
        return Verdict.KNOWN
    if object_id >= counters.next_value(view, counters.OBJECT):
        return Verdict.FUTURE
    return _by_age(info.modified_at_ms, put_before_ms)


def judge_upload(upload: OpenMultipart, view: View, cluster: ClusterRow, begun_before_ms: int) -> Verdict:
    """About an object that somebody began to write in parts. Once it was committed, another upload to its key writes nothing that anybody wants."""
    object_id = _own_id(upload.key, cluster)
    if object_id is None:
        return Verdict.OTHERS
    row = view.objects.get(object_id)
    if row is not None and row.state is ObjectState.PREPARED:
        return Verdict.KNOWN
    if row is None and object_id >= counters.next_value(view, counters.OBJECT):
        return Verdict.FUTURE
    return _by_age(upload.begun_at_ms, begun_before_ms)


def is_own_key(key: str, cluster: ClusterRow) -> bool:
    """Whether this cluster gives such keys."""
    return _own_id(key, cluster) is not None


def _own_id(key: str, cluster: ClusterRow) -> ObjectId | None:
    """The id, if the key is one that this cluster gives."""
    try:
        namespace, object_id = parse_object_key(key)
    except ValueError:
        return None
    # The counter says nothing of ids that another cluster made.
    is_own = namespace == cluster.namespace and cluster_of_id(object_id) == cluster.cluster_ordinal
    return object_id if is_own else None


def _by_age(happened_at_ms: int | None, before_ms: int) -> Verdict:
    return Verdict.DEAD if happened_at_ms is not None and happened_at_ms < before_ms else Verdict.YOUNG
