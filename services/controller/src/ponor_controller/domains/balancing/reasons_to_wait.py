"""When the balancer keeps still, whatever the loads are.

What lives here: the questions, and their answers in words for `ponor cluster balance --explain`. Cool-downs and bounds belong to the planner.
"""

from __future__ import annotations

from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NO_NODE, NODES, NodeRole, WalKind
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY
from ponor_metadata.nouns.wals import WALS

from ponor_controller.domains.balancing.drawing import Sources


def reason_to_wait(sources: Sources) -> str:
    """Why nothing is moved now; empty when nothing stands in the way."""
    view = sources.view
    cluster = cluster_of(view)
    if cluster is None:
        return "the cluster is not formatted yet"
    if cluster.balancer_paused:
        return "the balancer was told to keep still; `ponor cluster balance --resume` ends that"
    if cluster.stop_until_ms > sources.now_ms:
        return "the cluster is about to be stopped"
    return _failover(sources)


def _failover(sources: Sources) -> str:
    """A broker that failed, or is about to be declared so: its partitions come first, and after them everything looks different."""
    view = sources.view
    for wal in view[WALS]:
        if wal.recoverer_id != NO_NODE:
            return f"a write-ahead log of broker {wal.node_id} is being recovered"
    for node in view[NODES]:
        if node.role is not NodeRole.BROKER or node.wal is not WalKind.OBJECT:
            continue
        is_gone = node.fenced or sources.is_suspected(node.node_id)
        if is_gone and len(view[PARTITIONS].find(PARTITIONS_LED_BY, node.node_id)):
            return f"broker {node.node_id} is gone, its partitions go to others first"
    return ""
