"""What autoscalers and dashboards see of the load: `ponor_broker_load` and `ponor_brokers_wanted`.

What lives here: numbers that the exporter's thread reads. The leading controller shows them, because it alone knows all reports and the capacities; the
others show 0, so that the maximum over all controllers is the value.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_runtime.identity import NodeId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.balancing.brokers_wanted import load_of
from ponor_controller.domains.balancing.goals import Goal
from ponor_controller.domains.balancing.picture import Picture


class LoadGauges:
    """Bounded by the brokers that ever were live in this process's terms."""

    def __init__(self, telemetry: Telemetry, goals: Sequence[Goal]) -> None:
        self._telemetry = telemetry
        self._goals = goals
        self._loads: dict[NodeId, float] = {}
        self.brokers_wanted = 0
        telemetry.gauge("ponor_brokers_wanted", lambda: self.brokers_wanted)

    def show(self, picture: Picture) -> None:
        """These are the brokers, and what they carry; others carry nothing any more."""
        loads = {each.node_id: load_of(each, self._goals) for each in (*picture.brokers, *picture.others)}
        for node_id in loads:
            if node_id not in self._loads:
                self._register(node_id)
        for node_id in self._loads:
            self._loads[node_id] = min(1.0, loads.get(node_id, 0.0))

    def clear(self) -> None:
        """This controller does not lead."""
        for node_id in self._loads:
            self._loads[node_id] = 0.0
        self.brokers_wanted = 0

    def _register(self, node_id: NodeId) -> None:
        self._loads[node_id] = 0.0
        self._telemetry.gauge("ponor_broker_load", lambda: self._loads[node_id], broker=str(node_id))
