"""A compactor writes down what it saw of the controllers' log before an object has one of its ids."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.controller_tasks import ControllerTasks
from ponor_compactor.settings import CompactorSettings


class Session:
    """Reserves ids."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    async def submit(self, operation: wire.Operation) -> wire.OperationResult:
        """Answer at once."""
        self._steps.append(str(operation.WhichOneof("kind")))
        return wire.OperationResult(objects_reserved=wire.ObjectsReserved(first_object_id=7, count=1))


async def test_ids_are_used_after_the_seen_index_is_written() -> None:
    steps: list[str] = []

    async def write_seen() -> None:
        steps.append("written")

    tasks = ControllerTasks(Session(steps), CompactorSettings(), write_seen)
    assert (await tasks.prepare(1)).first_object_id == 7
    assert steps == ["prepare_objects", "written"]
