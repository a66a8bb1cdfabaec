"""A node has one record of the controllers' log in the store."""

from __future__ import annotations

from ponor_metadata.client.seen_history import SeenHistory, Witness, read_seen
from ponor_runtime.identity import NodeId
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

NAMESPACE = "namespace"
NODE, OTHER = NodeId(65_536), NodeId(65_537)


def test_a_process_removes_the_records_of_earlier_processes_of_its_node() -> None:
    simulation = Simulation(1)
    store = simulation.object_store()

    def seen(index: int) -> SeenHistory:
        return SeenHistory(0, 1, index, b"n" * 8)

    async def main(runtime: Runtime) -> None:
        await Witness(store, runtime.clock, NAMESPACE, OTHER).write(seen(5))
        newest = seen(90)
        await Witness(store, runtime.clock, NAMESPACE, NODE).write(newest)
        for start in range(10, 50, 10):  # each of them one process
            witness = Witness(store, runtime.clock, NAMESPACE, NODE)
            await witness.write(seen(start))
            await witness.write(seen(start + 1))
        assert await read_seen(store, NAMESPACE) == (seen(5), seen(41), newest), "only older ones are removed"

    node = simulation.process("node", main)

    async def story() -> None:
        node.start()
        await wait_until(lambda: not node.running)

    simulation.run(story())
