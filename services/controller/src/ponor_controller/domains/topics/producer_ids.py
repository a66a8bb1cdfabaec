"""Producer ids: blocks of them, each given to one broker once."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters

from ponor_controller.kernel.decisions import Decision, Situation, require_count, require_role


def allocate_producer_ids(body: wire.AllocateProducerIds, situation: Situation) -> Decision:
    """Give the caller the next block. What it does not use is lost, which is cheaper than asking per producer."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(body.count, situation.settings.producer_ids_max, "producer ids")
    first = counters.next_value(situation.view, counters.PRODUCER)
    allocated = records_pb2.ProducerIdsAllocated(
        first_producer_id=first, count=body.count, node_id=situation.caller.node_id
    )
    granted = wire.ProducerIdsGranted(first_producer_id=first, count=body.count)
    return Decision(
        [records_pb2.Record(producer_ids_allocated=allocated)],
        wire.OperationResult(producer_ids_granted=granted),
    )
