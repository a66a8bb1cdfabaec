"""Which columns every table has in a snapshot, and how its rows become values of these columns and back.

What lives here: one entry per kind of section, in the order of the format (docs/formats/image.md), and nothing about bytes. Numbers of
kinds are part of the format for ever. Three layouts are in use: an image is written as its feature level says, so that every process which can
read the log can read the snapshot, and all are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from ponor_metadata.blocks import Picture, Values
from ponor_metadata.image import MetadataImage
from ponor_metadata.levels import LEVEL_BROKERS, LEVEL_COMPACTION, level_of
from ponor_metadata.object_table import Origin
from ponor_metadata.ranges import PackedRanges
from ponor_metadata.rows import (
    BrokerConfigsRow,
    ClusterRow,
    CompactionKind,
    CompactionRow,
    MoveCause,
    MoveRow,
    NodeRole,
    NodeRow,
    ObjectRow,
    ObjectState,
    QuorumMemberRow,
    StreamRow,
    StreamSetObjectRow,
    TopicRow,
    WalKind,
)
from ponor_metadata.snapshot_columns import BLOBS, INTEGERS, NATURALS, TEXTS, UNIQUE_TEXTS, Column, Lists


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """The rows of one kind of section as of one index: how many, and the values of their columns, made as they are asked for."""

    count: int
    values: Iterator[Values]


@dataclass(frozen=True, slots=True)
class SectionKind:
    """One kind of section.

    Attributes:
        number: what it is called in the bytes.
        name: what it is called in messages.
        columns: of a row, in order.
        freeze: the rows of an image as they are now, in key order.
        load: puts the rows of a section into an image; raises ValueError if they cannot stand there.
        weigh: bytes of a row beside its numbers, counted against the bound of a section; None where there are none worth counting.
    """

    number: int
    name: str
    columns: tuple[Column, ...]
    freeze: Callable[[MetadataImage], FrozenRows]
    load: Callable[[MetadataImage, Sequence[Values]], None]
    weigh: Callable[[Values], int] | None = None


def _plain(
    number: int,
    table: str,
    columns: tuple[Column, ...],
    *,
    values: Callable[[Values], Values] | None = None,
    row: Callable[[Values], Any] | None = None,
    weigh: Callable[[Values], int] | None = None,
) -> SectionKind:
    """A table of any rows. `values` makes columns' values of a packed row, `row` makes a row of them: where they are not the same."""

    def freeze(image: MetadataImage) -> FrozenRows:
        picture: Picture[Any] = getattr(image, table).freeze()
        packed = (each for _, each in picture.drain())
        return FrozenRows(len(picture), packed if values is None else map(values, packed))

    def load(image: MetadataImage, rows: Sequence[Values]) -> None:
        getattr(image, table).load(rows if row is None else [tuple(row(values)) for values in rows])

    return SectionKind(number, table, columns, freeze, load, weigh)


def _bytes_at(*places: int) -> Callable[[Values], int]:
    return lambda values: sum(len(values[place]) for place in places)


def _flat_configs(values: Values) -> Values:
    """Settings are the last value of their rows, a mapping; in columns they are names and values in turn, sorted by name."""
    return (*values[:-1], tuple(chain.from_iterable(sorted(values[-1].items()))))


def _configs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _configs_bytes(values: Values) -> int:
    return sum(map(len, values[-1]))


def _cluster(values: Values) -> ClusterRow:
    *front, unconfirmed, stop_until_ms, paused = values
    return ClusterRow._make((*front, bool(unconfirmed), stop_until_ms, bool(paused)))


def _cluster_of_a_quorum(values: Values) -> ClusterRow:
    return _cluster((*values, 0, False))


def _node(values: Values) -> NodeRow:
    node_id, node_epoch, role, *middle, fenced, first_incomplete_id, wal, draining = values
    return NodeRow._make(
        (
            node_id,
            node_epoch,
            NodeRole(role),
            *middle,
            bool(fenced),
            first_incomplete_id,
            WalKind(wal),
            bool(draining),
        )
    )


def _node_of_a_quorum(values: Values) -> NodeRow:
    return _node((*values, WalKind.FILE, False))


def _without(*values: Any) -> Callable[[Values], Values]:
    """Leave out the last columns, which an older layout does not have: no record that its level allows changes them from `values`."""

    def leave_out(row: Values) -> Values:
        assert row[-len(values) :] == values, (
            f"{row} needs {values} at its end below metadata.level {LEVEL_BROKERS}"
        )
        return row[: -len(values)]

    return leave_out


def _move(values: Values) -> MoveRow:
    return MoveRow._make((*values[:6], MoveCause(values[6]), *values[7:]))


def _compaction(values: Values) -> CompactionRow:
    return CompactionRow._make((values[0], CompactionKind(values[1]), *values[2:]))


def _stream(values: Values) -> StreamRow:
    return StreamRow._make((*values[:2], bool(values[2]), *values[3:]))


def _freeze_in_use(image: MetadataImage) -> FrozenRows:
    in_use, _, origins = image.objects.freeze()
    # An origin's number is this process's own; the section says what it stands for.
    rows = ((key, *origins[number], size, time_ms) for key, (number, size, time_ms) in in_use.drain())
    return FrozenRows(len(in_use), rows)


def _load_in_use(image: MetadataImage, rows: Sequence[Values]) -> None:
    keys, *origin, sizes, times = zip(*rows, strict=True)
    named = list(zip(*origin, strict=True))
    places = {each: place for place, each in enumerate(dict.fromkeys(named))}
    origins = [Origin(ObjectState(state), *rest) for state, *rest in places]
    image.objects.load_in_use(keys, list(map(places.__getitem__, named)), sizes, times, origins)


def _freeze_destroyed(image: MetadataImage) -> FrozenRows:
    _, destroyed, _ = image.objects.freeze()
    return FrozenRows(len(destroyed), (row for _, row in destroyed.drain()))


def _load_destroyed(image: MetadataImage, rows: Sequence[Values]) -> None:
    image.objects.load_destroyed([ObjectRow(row[0], ObjectState(row[1]), *row[2:]) for row in rows])


def _freeze_stream_objects(image: MetadataImage) -> FrozenRows:
    picture = image.stream_objects.freeze()
    return FrozenRows(len(picture), ((key, *values) for key, values in picture.drain()))


def _load_stream_objects(image: MetadataImage, rows: Sequence[Values]) -> None:
    image.stream_objects.load([row[0] for row in rows], [row[1:] for row in rows])


def _freeze_set_objects(image: MetadataImage) -> FrozenRows:
    picture = image.stream_set_objects.freeze()
    return FrozenRows(len(picture), ((key, *values) for key, values in picture.drain()))


def _load_set_objects(image: MetadataImage, rows: Sequence[Values]) -> None:
    image.stream_set_objects.load(
        [StreamSetObjectRow._make((*row[:3], PackedRanges(row[3]))) for row in rows]
    )


_CLUSTER_OF_A_QUORUM: Final = (TEXTS, INTEGERS, TEXTS, NATURALS, INTEGERS)
_NODE_OF_A_QUORUM: Final = (
    INTEGERS,
    INTEGERS,
    INTEGERS,
    BLOBS,
    TEXTS,
    INTEGERS,
    INTEGERS,
    INTEGERS,
    NATURALS,
)
_ORIGIN: Final = (INTEGERS, TEXTS, INTEGERS, INTEGERS, INTEGERS)

_CLUSTERS: Final = _plain(1, "clusters", (*_CLUSTER_OF_A_QUORUM, INTEGERS, INTEGERS), row=_cluster)
_NODES: Final = _plain(5, "nodes", (*_NODE_OF_A_QUORUM, INTEGERS, INTEGERS), row=_node)
_SECTION_KINDS: Final = (
    _CLUSTERS,
    _plain(2, "features", (TEXTS, INTEGERS)),
    _plain(3, "tenants", (TEXTS, TEXTS)),
    _plain(4, "counters", (TEXTS, INTEGERS)),
    _NODES,
    _plain(
        6,
        "streams",
        (*[INTEGERS] * 7, Lists(INTEGERS, INTEGERS, INTEGERS), Lists(TEXTS, TEXTS)),
        row=_stream,
        weigh=_bytes_at(7, 8),
    ),
    SectionKind(7, "objects in use", (INTEGERS, *_ORIGIN, INTEGERS, INTEGERS), _freeze_in_use, _load_in_use),
    SectionKind(
        8,
        "destroyed objects",
        (INTEGERS, *_ORIGIN, *[INTEGERS] * 7),
        _freeze_destroyed,
        _load_destroyed,
    ),
    SectionKind(9, "stream objects", (INTEGERS,) * 4, _freeze_stream_objects, _load_stream_objects),
    SectionKind(
        10,
        "stream set objects",
        (INTEGERS, INTEGERS, INTEGERS, BLOBS),
        _freeze_set_objects,
        _load_set_objects,
        _bytes_at(3),
    ),
    _plain(11, "keys", (UNIQUE_TEXTS, BLOBS), weigh=_bytes_at(0, 1)),
    _plain(
        12,
        "topics",
        (BLOBS, TEXTS, TEXTS, INTEGERS, Lists(TEXTS, TEXTS)),
        values=_flat_configs,
        row=lambda values: TopicRow._make((*values[:-1], _configs(values[-1]))),
        weigh=_configs_bytes,
    ),
    _plain(13, "partitions", (BLOBS, INTEGERS, INTEGERS, INTEGERS, Lists(INTEGERS))),
    _plain(21, "reclaims", (INTEGERS,)),
    _plain(22, "deletions", (BLOBS, TEXTS, INTEGERS), weigh=_bytes_at(1)),
    _plain(14, "operations", (INTEGERS, NATURALS, BLOBS, BLOBS, NATURALS), weigh=_bytes_at(3)),
    _plain(
        15,
        "broker_configs",
        (INTEGERS, Lists(TEXTS, TEXTS)),
        values=_flat_configs,
        row=lambda values: BrokerConfigsRow(values[0], _configs(values[1])),
        weigh=_configs_bytes,
    ),
    _plain(
        16,
        "quorum",
        (INTEGERS, BLOBS, TEXTS, TEXTS, INTEGERS),
        row=lambda values: QuorumMemberRow._make((*values[:-1], bool(values[-1]))),
    ),
    _plain(
        17,
        "moves",
        (BLOBS, *[INTEGERS] * 6, TEXTS, TEXTS),
        row=_move,
        weigh=_bytes_at(7, 8),
    ),
    _plain(18, "wals", (INTEGERS, INTEGERS, NATURALS, INTEGERS, INTEGERS, NATURALS)),
    _plain(
        19,
        "compactions",
        (*[INTEGERS] * 4, Lists(INTEGERS), *[INTEGERS] * 4),
        row=_compaction,
        weigh=_bytes_at(4),
    ),
    _plain(20, "snapshots", (INTEGERS, TEXTS, *[INTEGERS] * 3), weigh=_bytes_at(1)),
)
_KINDS_OF_A_QUORUM: Final = 18
_KINDS_OF_BROKERS: Final = 20


@dataclass(frozen=True, slots=True)
class Layout:
    """One version of the format.

    Attributes:
        magic: the first bytes of a snapshot.
        kinds: of sections, in the order of the format.
    """

    magic: bytes
    kinds: tuple[SectionKind, ...]


LAYOUT_OF_A_QUORUM: Final = Layout(
    b"PONORIM2",
    tuple(
        {
            "clusters": _plain(
                1, "clusters", _CLUSTER_OF_A_QUORUM, values=_without(0, False), row=_cluster_of_a_quorum
            ),
            "nodes": _plain(
                5, "nodes", _NODE_OF_A_QUORUM, values=_without(WalKind.FILE, False), row=_node_of_a_quorum
            ),
        }.get(kind.name, kind)
        for kind in _SECTION_KINDS[:_KINDS_OF_A_QUORUM]
    ),
)
"""Of images below `LEVEL_BROKERS`."""
LAYOUT_OF_BROKERS: Final = Layout(b"PONORIM3", _SECTION_KINDS[:_KINDS_OF_BROKERS])
"""Of images below `LEVEL_COMPACTION`."""
LAYOUT: Final = Layout(b"PONORIM4", _SECTION_KINDS)
LAYOUTS: Final = {layout.magic: layout for layout in (LAYOUT_OF_A_QUORUM, LAYOUT_OF_BROKERS, LAYOUT)}


def layout_of(image: MetadataImage) -> Layout:
    """How this image is written: as every process that runs its level can read it. Without a level nobody older is there."""
    level = level_of(image)
    if not 0 < level < LEVEL_COMPACTION:
        return LAYOUT
    assert not len(image.compactions), f"a compaction below metadata.level {LEVEL_COMPACTION}"
    assert not len(image.snapshots), f"a snapshot below metadata.level {LEVEL_COMPACTION}"
    if level < LEVEL_BROKERS:
        assert not len(image.moves), f"a move below metadata.level {LEVEL_BROKERS}"
        assert not len(image.wals), f"a log in the store below metadata.level {LEVEL_BROKERS}"
        return LAYOUT_OF_A_QUORUM
    return LAYOUT_OF_BROKERS
