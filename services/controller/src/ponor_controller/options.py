"""Options that differ between controllers of one cluster. Values that all controllers share are in
`settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_rpc.tls import TlsFiles
from ponor_runtime.identity import UNKNOWN_ORDINAL, ClusterOrdinal, NodeId, compose_node_id, number_of_node

from ponor_controller.consensus.members import Member

FIRST_CONTROLLER_NUMBER: Final = 3_000
"""Lowest node number of controllers, far from the node numbers of brokers."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Options of one controller.

    Attributes:
        data: the data directory.
        listen: HOST:PORT of sessions and subscriptions.
        cluster_ordinal: the permanent ordinal. If 0, it is drawn at random when the cluster is formatted, and
            read from the directory later.
        cluster_id: the cluster id that the directory must contain; empty: any.
        node_id: the node id; None: that of the first controller. A value below 2^16 is a number within the
            cluster.
        peer_listen: HOST:PORT for other controllers; empty: no controller can join this one.
        peer_tls: files of mutual TLS between controllers; None: no TLS.
        voters: node ids and addresses of controllers, which take precedence over those in the log. With
            `format` they are also the voters of a new cluster. Directory ids in them are ignored, because
            every directory draws its own.
        format: whether an empty directory may become a voter of a new cluster. Otherwise a controller with an
            empty directory waits until a cluster adds it.
    """

    data: PurePath
    listen: str
    cluster_ordinal: ClusterOrdinal = UNKNOWN_ORDINAL
    cluster_id: str = ""
    node_id: NodeId | None = None
    peer_listen: str = ""
    peer_tls: TlsFiles | None = None
    voters: tuple[Member, ...] = ()
    format: bool = False

    @property
    def own_node_id(self) -> NodeId:
        """The node id, with the default."""
        return self.node_id or compose_node_id(self.cluster_ordinal, FIRST_CONTROLLER_NUMBER)

    @property
    def may_format(self) -> bool:
        """Whether `format` is set, and this controller is one of the configured voters or there are none."""
        numbers = {number_of_node(voter.node_id) for voter in self.voters}
        return self.format and (not numbers or number_of_node(self.own_node_id) in numbers)
