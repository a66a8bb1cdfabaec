"""`ponor object map`: draw which objects hold which offsets of a topic, a line of cells per stream.

A cell is a range of offsets. If two or more objects begin in it, the cell shows their number.
Otherwise it shows the kind of the object that holds the range, in two alternating shades, or a dot if
no object holds it. A fragmented stream is a row of digits, and a compacted stream is a bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import typer
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import TOPICS, TopicRow
from ponor_runtime.identity import ObjectId

from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.image_reader import image_of
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError, absent_topic
from ponor_cli.output import OutputFormat, human_bytes, print_rows, print_value

WIDTH: Final = 64
PARTITIONS_DRAWN_MAX: Final = 50
PIECES_PER_LOOKUP: Final = 1_000
DIGIT_MAX: Final = 9
STREAM_OBJECT: Final = "█▓"
STREAM_SET_OBJECT: Final = "▒░"
NOTHING: Final = "·"
LEGEND: Final = (
    "█▓ stream objects, ▒░ stream set objects (shared with other streams), in alternating shades;"
    " 2-9 and +: number of objects that begin in the cell"
)


class HeldPiece(NamedTuple):
    """The range [start_offset, end_offset) of a stream in one object."""

    object_id: ObjectId
    start_offset: int
    end_offset: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class StreamMap:
    """Objects of the committed offsets of one stream, in order."""

    partition: int
    kind: str
    start_offset: int
    end_offset: int
    pieces: tuple[HeldPiece, ...]


class MapTotals(NamedTuple):
    """Totals of a topic: its streams and pieces, its stream objects with their bytes, and the stream
    set objects that hold data of the topic.
    """

    streams: int
    pieces: int
    stream_objects: int
    stream_object_bytes: int
    stream_set_objects: int
    pieces_per_stream_max: int


def map_topic(image: MetadataImage, name: str) -> list[StreamMap]:
    """Map every stream of a topic that holds data, sorted by partition and kind.

    Raises:
        CommandError: the topic does not exist.
    """
    topic = next((row for row in image[TOPICS] if row.name == name), None)
    if topic is None:
        raise absent_topic(name)
    found = [_map_stream(image, stream) for stream in _streams_of(image, topic)]
    return sorted(found, key=lambda each: (each.partition, each.kind))


def totals_of(image: MetadataImage, maps: Sequence[StreamMap]) -> MapTotals:
    """Return the totals of a topic."""
    own = {piece.object_id for each in maps for piece in each.pieces if not piece.is_shared}
    shared = {piece.object_id for each in maps for piece in each.pieces if piece.is_shared}
    sizes = [row.size_bytes for row in map(image[OBJECTS].get, sorted(own)) if row is not None]
    return MapTotals(
        len(maps),
        sum(len(each.pieces) for each in maps),
        len(own),
        sum(sizes),
        len(shared),
        max((len(each.pieces) for each in maps), default=0),
    )


def draw(each: StreamMap, width: int = WIDTH) -> str:
    """The cells of a stream: `width` cells, or one per offset if the stream has fewer offsets."""
    span = each.end_offset - each.start_offset
    cells = max(1, min(width, span))
    begun = Counter(
        (max(piece.start_offset, each.start_offset) - each.start_offset) * cells // span
        for piece in each.pieces
    )
    line: list[str] = []
    number = -1
    for cell in range(cells):
        number += begun[cell]
        if begun[cell] > 1:
            line.append(str(begun[cell]) if begun[cell] <= DIGIT_MAX else "+")
        elif number < 0 or each.pieces[number].end_offset <= each.start_offset + cell * span // cells:
            line.append(NOTHING)
        else:
            shades = STREAM_SET_OBJECT if each.pieces[number].is_shared else STREAM_OBJECT
            line.append(shades[number % len(shades)])
    return "".join(line)


def map_objects(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Draw only this partition; repeatable.", min=0),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Draw which objects hold which offsets of a topic's partitions. To see the effect of
    compaction, compare the output before and after it.
    """
    image = image_of(find_cluster(data, bootstrap))
    maps = map_topic(image, topic)
    if partition:
        maps = [each for each in maps if each.partition in partition]
        if not maps:
            raise CommandError(
                f"partition {', '.join(map(str, partition))} of {topic} does not exist, or has no data"
                " in objects yet"
            )
    totals = totals_of(image, maps)
    if output is OutputFormat.JSON:
        print_value(
            {"topic": topic, "totals": totals._asdict(), "streams": list(map(_as_json, maps))}, output
        )
        return
    if not maps:
        print(
            f"{topic} has no data in objects yet; brokers upload records within a minute or two"
            " (`upload_interval_ms`)"
        )
        return
    partitions = list(dict.fromkeys(each.partition for each in maps))
    drawn = frozenset(partitions[:PARTITIONS_DRAWN_MAX])
    rows = [_row(topic, each) for each in maps if each.partition in drawn]
    print_rows(rows, ["stream", "offsets", "objects", "map"], output)
    if len(partitions) > len(drawn):
        print(f"and {len(partitions) - len(drawn)} more partitions; --partition N draws one")
    print(f"\n{LEGEND}\n{_sentence(totals)}")


def _streams_of(image: MetadataImage, topic: TopicRow) -> Iterator[StreamRow]:
    wanted = topic.topic_id.hex()
    for stream in image[STREAMS]:
        if stream.tags.get("topic") == wanted and stream.end_offset > stream.start_offset:
            yield stream


def _map_stream(image: MetadataImage, stream: StreamRow) -> StreamMap:
    pieces: list[HeldPiece] = []
    offset = stream.start_offset
    while offset < stream.end_offset:
        found = find_pieces(image, stream.stream_id, offset, stream.end_offset, limit=PIECES_PER_LOOKUP)
        if not found:
            break
        for each in found:
            is_shared = each.object_id in image[STREAM_SET_OBJECTS]
            pieces.append(HeldPiece(each.object_id, each.start_offset, each.end_offset, is_shared))
        offset = found[-1].end_offset
    return StreamMap(
        int(stream.tags.get("partition", 0)),
        stream.tags.get("kind", ""),
        stream.start_offset,
        stream.end_offset,
        tuple(pieces),
    )


def _row(topic: str, each: StreamMap) -> dict[str, Any]:
    return {
        "stream": f"{topic}-{each.partition} {each.kind}",
        "offsets": f"[{each.start_offset}, {each.end_offset})",
        "objects": len(each.pieces),
        "map": draw(each),
    }


def _as_json(each: StreamMap) -> dict[str, Any]:
    return {
        "partition": each.partition,
        "kind": each.kind,
        "start_offset": each.start_offset,
        "end_offset": each.end_offset,
        "pieces": [piece._asdict() for piece in each.pieces],
    }


def _sentence(totals: MapTotals) -> str:
    return (
        f"{totals.streams} streams in {totals.pieces} pieces, at most {totals.pieces_per_stream_max} in one"
        " stream: "
        f"{totals.stream_objects} stream objects ({human_bytes(totals.stream_object_bytes)}),"
        f" {totals.stream_set_objects} stream set objects"
    )
