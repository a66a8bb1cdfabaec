"""`ponor cluster quorum`: show and change the voters and learners among the controllers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_runtime.identity import NodeId, number_of_node

from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.controllers import ask_quorum, describe_quorum_soon
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.forced_recovery import force_local_recovery, force_one_recovery
from ponor_cli.output import OutputFormat, print_done, print_rows, print_value

MEMBER_COLUMNS: Final = (
    "node_id",
    "status",
    "match_index",
    "lag",
    "silent_ms",
    "behind_ms",
    "service_address",
    "peer_address",
    "directory_id",
)
SILENT_VOTER_MS: Final = 3_000
NodeArgument = Annotated[int, typer.Argument(metavar="NODE_ID", help="node id of a controller", min=1)]

quorum_app = typer.Typer(
    help="Show and change the quorum of the controllers.",
    no_args_is_help=True,
    add_completion=False,
)


@quorum_app.command("describe")
def describe(
    data: DataOption = None, bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show leader, voters and learners, with the lag of each."""
    answer = ask_quorum(
        _controllers(data, bootstrap), wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
    )
    facts, members = describe_quorum(answer.description)
    if output is OutputFormat.JSON:
        print_value({**facts, "members": members}, output)
        return
    print_value(facts, output)
    print()
    print_rows(members, MEMBER_COLUMNS, output)


@quorum_app.command("add-learner")
def add_learner(
    node_id: NodeArgument,
    directory: Annotated[
        str,
        typer.Option(
            "--directory",
            metavar="UUID",
            help="Id of the controller's data directory; the controller logs it.",
        ),
    ],
    peer: Annotated[
        str, typer.Option("--peer", metavar="HOST:PORT", help="Address for the other controllers.")
    ],
    service: Annotated[
        str, typer.Option("--service", metavar="HOST:PORT", help="Address for nodes and tools.")
    ],
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add a controller with an empty directory as a learner; `promote` makes it a voter."""
    learner = wire.AddLearner(
        node_id=node_id, directory_id=_directory_id(directory), peer_address=peer, service_address=service
    )
    _change(
        data,
        bootstrap,
        wire.QuorumRequest(add_learner=learner),
        f"controller {node_id} is a learner",
        output,
    )


@quorum_app.command("promote")
def promote(
    node_id: NodeArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Promote a learner to a voter. The learner must have caught up with the leader."""
    controllers = _controllers(data, bootstrap)
    answer = ask_quorum(controllers, wire.QuorumRequest(promote=wire.PromoteLearner(node_id=node_id)))
    description = describe_quorum_soon(controllers)
    warning = "" if description is None else silence_of_voter(description, node_id)
    print_done(f"controller {node_id} is a voter{warning}", {"index": answer.done.index}, output)


@quorum_app.command("remove")
def remove(
    node_id: NodeArgument,
    directory: Annotated[
        str | None,
        typer.Option(
            "--directory",
            metavar="UUID",
            help="Remove the controller only if its data directory has this id.",
        ),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove a voter or learner from the quorum. Stop its process afterwards."""
    member = wire.RemoveMember(node_id=node_id, directory_id=_directory_id(directory) if directory else b"")
    _change(
        data,
        bootstrap,
        wire.QuorumRequest(remove=member),
        f"controller {node_id} is removed from the quorum",
        output,
    )


@quorum_app.command("transfer")
def transfer(
    node_id: Annotated[
        int,
        typer.Argument(
            metavar="[NODE_ID]",
            help="the next leader; default: the voter with the longest log",
            show_default=False,
        ),
    ] = 0,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Transfer the leadership to another voter, without an election timeout."""
    request = wire.QuorumRequest(transfer=wire.TransferLeadership(node_id=node_id))
    _change(
        data,
        bootstrap,
        request,
        f"controller {node_id} leads" if node_id else "another controller leads",
        output,
    )


@quorum_app.command("snapshot")
def snapshot(
    data: DataOption = None, bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Write a snapshot of the metadata on the leader now."""
    request = wire.QuorumRequest(take_snapshot=wire.TakeSnapshot())
    _change(data, bootstrap, request, "the leader has written a snapshot", output)


@quorum_app.command("confirm-incarnation")
def confirm_incarnation(
    incarnation: Annotated[
        int, typer.Argument(metavar="INCARNATION", help="the incarnation that `describe` shows", min=1)
    ],
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Allow garbage collection to delete again, after a forced recovery whose losses are known."""
    request = wire.QuorumRequest(confirm_incarnation=wire.ConfirmIncarnation(incarnation=incarnation))
    _change(
        data,
        bootstrap,
        request,
        f"incarnation {incarnation} is confirmed; garbage collection deletes again",
        output,
    )


FORCE_HELP = """Make one stopped controller the whole quorum, after the majority of the controllers
is PERMANENTLY lost.

Entries that are not in this controller's log are lost, and some objects may remain unreferenced. If
you can restore a majority of the controllers, do that instead.
Choose the controller whose last entry has the greatest term, and among equal terms the greatest
index: a longer log of an earlier term lacks later commits. The command prints both; try it on copies
of the directories.
Never start the other controllers again on their old directories; the new incarnation refuses them.

\b
Example:
  ponor cluster quorum force-recovery --controller 1 --data data --accept-loss
  ponor cluster quorum force-recovery --config /run/ponor/controller.json --accept-loss
"""


@quorum_app.command("force-recovery", help=FORCE_HELP)
def force_recovery_command(
    controller: Annotated[
        int | None,
        typer.Option("--controller", metavar="N", help="Number of the controller that continues alone."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Under another supervisor: configuration file of the controller that continues alone.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Accept the loss of entries that only the lost controllers have."),
    ] = False,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Data directory of the cluster.")
    ] = Path("data"),
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See FORCE_HELP."""
    if not accept_loss:
        raise CommandError(
            "entries that only the lost controllers have will be lost; read `ponor cluster quorum"
            " force-recovery --help`, then add --accept-loss"
        )
    if config is not None and controller is None:
        done, start = force_one_recovery(config), "that controller alone"
    elif controller is not None and config is None:
        done = force_local_recovery(ClusterDirectory(data), controller)
        start = f"it with `ponor up --controllers 1 --data {data}`"
    else:
        raise CommandError(
            "name the controller that continues alone: --controller N of a `ponor up`, or --config FILE"
        )
    message = (
        f"FORCED RECOVERY of cluster {done.cluster_id}: controller {done.node_id} is the only voter"
        f" of incarnation {done.incarnation}. "
        f"Its log up to index {done.last_index} of term {done.last_term} counts as committed"
        f" (known to be committed before the recovery: up to {done.known_committed_index}). "
        f"Start {start}; nothing is deleted from the object store until "
        f"`ponor cluster quorum confirm-incarnation {done.incarnation}`"
    )
    print_done(message, asdict(done), output)


def silence_of_voter(description: wire.QuorumDescription, node_id: int) -> str:
    """Return a warning if the leader has no contact with the voter, or an empty text.

    The warning is needed because `promote` succeeds for a voter, even if the voter's directory was lost.
    `node_id` may be a node number.
    """
    for member in description.members:
        number = number_of_node(NodeId(member.node_id))
        if node_id in (member.node_id, number) and member.voter and member.silent_ms > SILENT_VOTER_MS:
            directory = uuid.UUID(bytes=member.directory_id)
            return (
                f", but the leader has had no contact with it for {member.silent_ms / 1000:.1f} s (directory"
                f" {directory}). If that directory is lost: "
                f"`ponor cluster quorum remove {member.node_id} --directory {directory}`, then"
                " `add-learner` with the new directory, then `promote`"
            )
    return ""


def describe_quorum(answer: wire.QuorumDescription) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the description as facts and a row per member."""
    facts: dict[str, Any] = {
        "leader": answer.leader_node_id or None,
        "term": answer.term,
        "commit_index": answer.commit_index,
        "last_index": answer.last_index,
        "snapshot_index": answer.snapshot_index,
        "incarnation": answer.incarnation,
        "features": [
            f"{feature.name}={feature.level} (supported: {feature.supported_min} to {feature.supported_max})"
            for feature in answer.features
        ],
    }
    members = [
        {
            "node_id": member.node_id,
            "status": _status(answer, member),
            "match_index": member.match_index,
            "lag": answer.last_index - member.match_index,
            "silent_ms": member.silent_ms if member.silent_ms >= 0 else None,
            "behind_ms": member.behind_ms if member.behind_ms >= 0 else None,
            "service_address": member.service_address,
            "peer_address": member.peer_address,
            "directory_id": str(uuid.UUID(bytes=member.directory_id)),
        }
        for member in answer.members
    ]
    return facts, members


def _status(answer: wire.QuorumDescription, member: wire.MemberState) -> str:
    if member.node_id == answer.leader_node_id:
        return "leader"
    return "follower" if member.voter else "learner"


def _change(
    data: Any, bootstrap: str | None, request: wire.QuorumRequest, message: str, output: OutputFormat
) -> None:
    answer = ask_quorum(_controllers(data, bootstrap), request)
    print_done(message, {"index": answer.done.index}, output)


def _controllers(data: Any, bootstrap: str | None) -> Sequence[str]:
    return find_cluster(data, bootstrap).controllers


def _directory_id(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as error:
        raise CommandError(
            f"--directory {text}: not a UUID; write the directory id that the controller logs"
        ) from error
