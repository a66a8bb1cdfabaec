"""Test that a compactor records the observed position of the controllers' log before it uses reserved ids."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.controller_tasks import ControllerTasks
from ponor_compactor.settings import CompactorSettings


class Session:
    """Session that answers PrepareObjects."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    async def submit(self, operation: wire.Operation) -> wire.OperationResult:
        """Answer immediately."""
        self._steps.append(str(operation.WhichOneof("kind")))
        return wire.OperationResult(objects_reserved=wire.ObjectsReserved(first_object_id=7, count=1))


async def test_ids_are_returned_after_the_position_is_recorded() -> None:
    steps: list[str] = []

    async def write_seen() -> None:
        steps.append("written")

    tasks = ControllerTasks(Session(steps), CompactorSettings(), write_seen)
    assert (await tasks.prepare(1)).first_object_id == 7
    assert steps == ["prepare_objects", "written"]
