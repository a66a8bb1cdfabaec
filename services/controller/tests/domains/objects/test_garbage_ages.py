"""Age of the oldest garbage, reported only by the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ponor_controller.domains.objects.garbage_ages import GarbageAges
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.objects import OBJECTS, ObjectRow, ObjectState
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId
from ponor_runtime.telemetry import Telemetry


def _row(object_id: int, state: ObjectState, time_ms: int) -> ObjectRow:
    times: dict[str, Any] = dict.fromkeys(("expires_at_ms", "committed_at_ms", "destroyed_at_ms"), 0)
    names = {
        ObjectState.PREPARED: "expires_at_ms",
        ObjectState.COMMITTED: "committed_at_ms",
        ObjectState.DESTROYED: "destroyed_at_ms",
    }
    times[names[state]] = time_ms
    return ObjectRow(
        object_id=ObjectId(object_id), state=state, namespace="c", bucket_index=0, node_id=NodeId(1), node_epoch=NodeEpoch(1),  # noqa: E501
        size_bytes=0, claim_node_id=NO_NODE, claim_node_epoch=NO_EPOCH, claimed_until_ms=0, **times,
    )  # fmt: skip


def test_ages_are_those_of_the_oldest_objects() -> None:
    telemetry, image = Telemetry(), MetadataImage()
    proposer = SimpleNamespace(view=SimpleNamespace(image=image), now_ms=lambda: 10_000, leads=True)
    ages = GarbageAges(cast(Any, proposer), telemetry)

    def shown() -> dict[str, tuple[float, float]]:
        ages.step()
        oldest = dict(telemetry.gauges("ponor_garbage_oldest_age_seconds"))
        numbers = dict(telemetry.gauges("ponor_garbage_objects"))
        return {state: (oldest[(state,)], numbers[(state,)]) for state in ("destroyed", "prepared")}

    assert shown() == {"destroyed": (0, 0), "prepared": (0, 0)}
    image[OBJECTS].put(_row(1, ObjectState.PREPARED, 12_000))  # its lease has not expired
    image[OBJECTS].put(_row(2, ObjectState.COMMITTED, 1))
    image[OBJECTS].put(_row(3, ObjectState.DESTROYED, 9_000))
    assert shown() == {"destroyed": (1, 1), "prepared": (0, 1)}
    image[OBJECTS].put(_row(4, ObjectState.DESTROYED, 4_000))
    image[OBJECTS].put(_row(5, ObjectState.PREPARED, 7_000))
    assert shown() == {"destroyed": (6, 2), "prepared": (3, 2)}
    image[OBJECTS].delete(ObjectId(4))
    assert shown() == {"destroyed": (1, 1), "prepared": (3, 2)}
    proposer.leads = False
    assert shown() == {"destroyed": (0, 0), "prepared": (0, 0)}
