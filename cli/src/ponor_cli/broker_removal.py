"""What the metadata say of a broker that has ended: whether it left the cluster for good, and whether it holds anything."""

from __future__ import annotations

from ponor_runtime.identity import NodeId

from ponor_cli.cluster_file import ClusterFile
from ponor_cli.errors import CommandError
from ponor_cli.image_reader import read_image


async def has_left(cluster: ClusterFile, node_id: int) -> bool:
    """Whether a broker gave everything away and said good-bye. One whose drain took too long has not, and others may wait for its next start."""
    try:
        row = (await read_image(cluster.controllers)).nodes.get(NodeId(node_id))
    except CommandError:
        return False
    return row is not None and row.fenced


async def check_holds_nothing(cluster: ClusterFile, number: int, node_id: int) -> None:
    """Whether a broker that has ended gave everything away.

    Raises:
        CommandError: it leads partitions or holds streams open, or no majority of the controllers answers.
    """
    image = await read_image(cluster.controllers)
    led = sum(row.leader_id == node_id for row in image.partitions)
    held = sum(row.open and row.node_id == node_id for row in image.streams)
    if led or held:
        raise CommandError(
            f"broker {number} has ended but still leads {led} partitions, with {held} streams open; `ponor node start broker {number}` "
            f"lets it recover them, then `ponor node remove broker {number}` gives them away"
        )
