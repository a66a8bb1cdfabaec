"""`ponor object`: list, inspect and verify objects, and the commands `map` and `reconcile`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectRow, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.nouns.topics import TOPICS
from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStore
from s3stream.objects.inspect import describe, verify
from s3stream.objects.keys import object_key

from ponor_cli.clients.cluster_address import ClusterAddress, find_cluster
from ponor_cli.clients.image_reader import image_of, with_store
from ponor_cli.commands.object_map import map_objects
from ponor_cli.commands.object_reconcile import reconcile_objects
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, counted, human_bytes, print_rows, print_value

object_app = typer.Typer(
    help="Show and verify the objects that hold the data.", no_args_is_help=True, add_completion=False
)
object_app.command("map")(map_objects)
object_app.command("reconcile")(reconcile_objects)

ObjectArgument = Annotated[
    str, typer.Argument(metavar="OBJECT", help="object id, or key as `object ls` shows it")
]
RANGES_SHOWN_MAX = 4
T = TypeVar("T")


@object_app.command("ls")
def list_objects(
    data: DataOption = None, bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """List objects: kind, state, size, and contents."""
    image = image_of(find_cluster(data, bootstrap))
    rows = [object_row(image, row) for row in image[OBJECTS]]
    if output is OutputFormat.TABLE:
        for row in rows:
            row["holds"] = _shorten(row["holds"])
            row["size"] = human_bytes(row["size_bytes"])
    print_rows(rows, ["object_id", "kind", "state", "size", "node_id", "holds", "key"], output)


@object_app.command("inspect")
def inspect_object(
    which: ObjectArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the index of an object: blocks, streams and offsets."""
    cluster = find_cluster(data, bootstrap)
    key = _key_of(cluster, which)
    found = _reading(cluster, key, describe)
    blocks = [
        {
            "stream_id": block.stream_id,
            "stream_epoch": block.epoch,
            "start_offset": block.start_offset,
            "end_offset": block.end_offset,
            "records": block.record_count,
            "position": block.position,
            "size_bytes": block.size_bytes,
            "crc32c": f"{block.crc:08x}",
            "max_timestamp_ms": block.max_timestamp_ms,
            "min_timestamp_ms": block.min_timestamp_ms if block.spread else None,
        }
        for block in found.blocks
    ]
    head = {
        "key": found.key,
        "format_version": found.format_version,
        "size_bytes": found.size_bytes,
        "streams": found.stream_count,
        "records": found.record_count,
    }
    if output is OutputFormat.JSON:
        print_value({**head, "blocks": blocks}, output)
        return
    print_value(head, output)
    print()
    columns = [
        "stream_id",
        "stream_epoch",
        "start_offset",
        "end_offset",
        "records",
        "position",
        "size_bytes",
        "crc32c",
    ]
    print_rows(blocks, columns, output)


@object_app.command("verify")
def verify_object(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[OBJECT]", help="object id or key; default: all committed objects"),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read whole objects and check every byte against the format and the checksums."""
    cluster = find_cluster(data, bootstrap)
    keys = [_key_of(cluster, which)] if which is not None else _committed_keys(image_of(cluster))
    found = [{"key": key, "problem": problem} for key in keys for problem in _reading(cluster, key, verify)]
    if output is OutputFormat.JSON:
        print_value({"objects": len(keys), "sound": not found, "problems": found}, output)
    else:
        for each in found:
            print(f"DAMAGED {each['key']}: {each['problem']}")
    if found:
        raise CommandError(f"{counted(len(found), 'problem')} in {counted(len(keys), 'object')}")
    if output is OutputFormat.TABLE:
        print(f"{counted(len(keys), 'object')} {'is' if len(keys) == 1 else 'are'} sound")


def object_row(image: MetadataImage, row: ObjectRow) -> dict[str, Any]:
    """Return the row of one object in `ls`."""
    stream_object = image[STREAM_OBJECTS].get(row.object_id)
    stream_set_object = image[STREAM_SET_OBJECTS].get(row.object_id)
    kind, holds = "-", []
    if stream_object is not None:
        kind = "stream"
        holds = [_holds(image, stream_object.stream_id, stream_object.start_offset, stream_object.end_offset)]
    elif stream_set_object is not None:
        kind = "stream-set"
        holds = [
            _holds(image, piece.stream_id, piece.start_offset, piece.end_offset)
            for piece in stream_set_object.ranges.decoded
        ]
    return {
        "object_id": row.object_id,
        "kind": kind,
        "state": ObjectState(row.state).name.lower(),
        "size_bytes": row.size_bytes,
        "node_id": row.node_id,
        "holds": holds,
        "key": object_key(row.namespace, row.object_id),
    }


def _holds(image: MetadataImage, stream_id: StreamId, start: int, end: int) -> str:
    stream = image[STREAMS].get(stream_id)
    if stream is None:
        return f"deleted stream {stream_id} [{start}, {end})"
    topic_id = stream.tags.get("topic")
    topic = image[TOPICS].get(bytes.fromhex(topic_id)) if topic_id else None
    name = topic.name if topic is not None else f"stream {stream_id}"
    kind = stream.tags.get("kind", "")
    return f"{name}-{stream.tags.get('partition', '')}{' ' + kind if kind else ''} [{start}, {end})"


def _shorten(holds: list[str]) -> str:
    shown = ", ".join(holds[:RANGES_SHOWN_MAX])
    return shown if len(holds) <= RANGES_SHOWN_MAX else f"{shown}, and {len(holds) - RANGES_SHOWN_MAX} more"


def _key_of(cluster: ClusterAddress, which: str) -> str:
    if not which.isdigit():
        return which
    row = image_of(cluster)[OBJECTS].get(ObjectId(int(which)))
    if row is None:
        raise CommandError(f"no object {which} in this cluster; `ponor object ls` lists them")
    return object_key(row.namespace, row.object_id)


def _committed_keys(image: MetadataImage) -> list[str]:
    return [
        object_key(row.namespace, row.object_id)
        for row in image[OBJECTS]
        if row.state is ObjectState.COMMITTED
    ]


def _reading(cluster: ClusterAddress, key: str, read: Callable[[ObjectStore, str], Awaitable[T]]) -> T:
    async def work(store: ObjectStore) -> T:
        try:
            return await read(store, key)
        except ObjectNotFoundError as error:
            raise CommandError(f"{key} is not in {cluster.object_store}") from error
        except ValueError as error:
            raise CommandError(f"{key}: {error}; give an id or key that `ponor object ls` shows") from error

    return with_store(cluster, dict(os.environ), work)
