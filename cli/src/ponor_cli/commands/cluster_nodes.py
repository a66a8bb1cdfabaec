"""Nodes of a cluster as its leader sees them, and `ponor cluster unregister`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from ponor.controller.v1 import cluster_service_pb2 as cluster_wire
from ponor.controller.v1 import quorum_service_pb2 as quorum_wire
from ponor_metadata.nouns.nodes import NodeRole

from ponor_cli.clients.cluster_address import find_controllers
from ponor_cli.clients.controllers import ask_cluster, describe_quorum_soon
from ponor_cli.commands.options import BootstrapOption, ControllersOption, DataOption, OutputOption
from ponor_cli.commands.quorum import SILENT_VOTER_MS
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, print_done

DESCRIBE_S_MAX: Final = 5.0
ANSWER_S: Final = 30.0
LIVE_STATES: Final = ("live", "draining")

UNREGISTER_HELP = """Remove a permanently stopped node from the metadata, so that a process of any
role may use its node id.

The node must be stopped and own nothing: no partition, no open stream, no write-ahead log.
Otherwise the command fails and names the remedy.

\b
Examples:
  ponor cluster unregister 65537
  ponor cluster unregister 65537 --bootstrap broker:9092
  ponor cluster unregister 65537 --controllers controller-0:9090,controller-1:9090
"""


def describe_nodes(controllers: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per controller and node, sorted by role.

    Raises:
        CommandError: no leader answers.
    """
    nodes = [
        {"role": NodeRole(node.role).name.lower(), "node_id": node.node_id, "state": _state_of(node)}
        for node in _ask_nodes(controllers)
    ]
    return [*_controllers(controllers), *sorted(nodes, key=lambda row: (str(row["role"]), row["node_id"]))]


def unregister(
    node_id: Annotated[
        int, typer.Argument(metavar="NODE_ID", help="node id, see `ponor cluster info`", min=0)
    ],
    controllers: ControllersOption = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See UNREGISTER_HELP."""
    known = find_controllers(controllers, data, bootstrap)
    index = ask_cluster(known, lambda client: client.unregister_node(node_id, timeout_s=ANSWER_S))
    print_done(f"node {node_id} is unregistered", {"node_id": node_id, "index": index}, output)


def _ask_nodes(controllers: Sequence[str]) -> Sequence[cluster_wire.NodeDescription]:
    return ask_cluster(controllers, lambda client: client.describe_nodes(timeout_s=DESCRIBE_S_MAX))


def _state_of(node: cluster_wire.NodeDescription) -> str:
    if node.fenced:
        return "left or fenced"
    if node.suspected or not node.connected:
        return _absence(node)
    return "draining" if node.draining else "live"


def _absence(node: cluster_wire.NodeDescription) -> str:
    if node.heard_ms_ago < 0:
        return "no contact since the leader took over"
    return f"away, last contact {node.heard_ms_ago / 1000:.1f} s ago"


def _controllers(controllers: Sequence[str]) -> list[dict[str, Any]]:
    description = describe_quorum_soon(controllers)
    if description is None:
        raise CommandError("no controller leads; is a majority of the controllers running?")
    return [
        {
            "role": "controller",
            "node_id": member.node_id,
            "state": _member_state(description, member),
        }
        for member in description.members
    ]


def _member_state(description: quorum_wire.QuorumDescription, member: quorum_wire.MemberState) -> str:
    if member.node_id == description.leader_node_id:
        return "live, leader"
    kind = "follower" if member.voter else "learner"
    if member.silent_ms < 0:
        return f"{kind}, no contact since the leader took over"
    if member.silent_ms > SILENT_VOTER_MS:
        return f"{kind}, away, last contact {member.silent_ms / 1000:.1f} s ago"
    return f"live, {kind}"
