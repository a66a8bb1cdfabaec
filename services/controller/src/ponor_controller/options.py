"""What differs from one controller to another.

What lives here: the value that the configuration is read into and that tests and the simulator build themselves. Settings, which are the same for all, are in `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_runtime.identity import UNKNOWN_ORDINAL, ClusterOrdinal, NodeId, compose_node_id, number_of_node

from ponor_controller.consensus.members import Member

FIRST_CONTROLLER_NUMBER: Final = 3_000
"""Node numbers of controllers begin here, far from those of brokers."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """One controller.

    Attributes:
        data: its directory.
        listen: HOST:PORT of sessions and subscriptions.
        cluster_ordinal: of the cluster; never changes. 0: drawn at random when the cluster is formatted, and taken from the directory afterwards.
        cluster_id: empty, or the id that the directory must have.
        node_id: None: the first controller's. One below 2^16 is a number, which the cluster's ordinal completes.
        peer_listen: HOST:PORT for other controllers; empty: none can ever join this one.
        voters: node ids and addresses of controllers; the addresses go before those in the log. With `format` also who forms the quorum of a new cluster. Their
            directory ids are not used: every directory draws its own.
        format: an empty directory may become a voter of a new cluster. Otherwise it is blank, and waits until a cluster adds it.
    """

    data: PurePath
    listen: str
    cluster_ordinal: ClusterOrdinal = UNKNOWN_ORDINAL
    cluster_id: str = ""
    node_id: NodeId | None = None
    peer_listen: str = ""
    voters: tuple[Member, ...] = ()
    format: bool = False

    @property
    def own_node_id(self) -> NodeId:
        """The node id, also where none was given."""
        return self.node_id or compose_node_id(self.cluster_ordinal, FIRST_CONTROLLER_NUMBER)

    @property
    def may_format(self) -> bool:
        """Whether an empty directory may become a voter of a new cluster: formatting is asked for, and this controller is among the voters if any are named."""
        numbers = {number_of_node(voter.node_id) for voter in self.voters}
        return self.format and (not numbers or number_of_node(self.own_node_id) in numbers)
