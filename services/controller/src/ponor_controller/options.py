"""What differs from one controller to another.

What lives here: the value that the configuration is read into and that tests and the simulator build themselves. Settings, which are the same for all, are in `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id

from ponor_controller.consensus.members import Member

FIRST_CONTROLLER_NUMBER: Final = 3_000
"""Node numbers of controllers begin here, far from those of brokers."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """One controller.

    Attributes:
        data: its directory.
        listen: HOST:PORT of sessions and subscriptions.
        cluster_ordinal: of the cluster; never changes.
        cluster_id: empty, or the id that the directory must have.
        node_id: None: the first controller's.
        peer_listen: HOST:PORT for other controllers; empty: none can ever join this one.
        voters: addresses of controllers, which go before those in the log; with `format` also who forms the quorum of an empty directory.
        format: an empty directory becomes one of `voters`, or, where there are none, a quorum of one; otherwise it is blank, and waits until it is added.
            None: said by nobody; only a controller that was told of no others begins a cluster then.
    """

    data: PurePath
    listen: str
    cluster_ordinal: ClusterOrdinal
    cluster_id: str = ""
    node_id: NodeId | None = None
    peer_listen: str = ""
    voters: tuple[Member, ...] = ()
    format: bool | None = None

    @property
    def own_node_id(self) -> NodeId:
        """The node id, also where none was given."""
        return self.node_id or compose_node_id(self.cluster_ordinal, FIRST_CONTROLLER_NUMBER)
