"""Scenarios of the control plane: controller, metadata library and subscriber."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire

from tests.benchmarks.turns.cluster_in_loop import cluster_in_loop
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder


@scenario("put-keys", "20 operations of 1,000 keys each")
async def put_keys(recorder: TurnRecorder) -> None:
    """The widest operation on keys, applied by the controller and by a subscriber."""
    async with cluster_in_loop() as cluster:
        recorder.start_recording()
        for number in range(20):
            puts = [wire.PutKey(key=f"{number}/{each}", value=b"v" * 16) for each in range(1_000)]
            await cluster.ask(put_keys=wire.PutKeys(puts=puts))
        recorder.stop_recording()
