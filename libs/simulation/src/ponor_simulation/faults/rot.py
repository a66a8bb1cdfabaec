"""Bit rot: one stored bit of a machine that is down flips.

What lives here: which bit. The atlas that says whose bits may flip is `swarm`'s: of everything that must survive, a good copy stays.
"""

from __future__ import annotations

from typing import NamedTuple

from ponor_simulation.disk import SimDisk


class Rotten(NamedTuple):
    """Where a bit flipped."""

    path: str
    position: int
    bit: int


def rot(disk: SimDisk, lot: int) -> Rotten | None:
    """Flip the bit that a lot names; None where there is nothing.

    Every file is as likely as any other, and in it every byte that is not zero: most of a fresh segment is, and its rot tells nothing.

    Args:
        disk: of a machine that is down.
        lot: any number from 0; the same one names the same bit of the same contents.
    """
    files = [
        (directory / name, state.durable)
        for directory, names in sorted(disk.state.directories.items())
        for name, state in sorted(names.names.items())
        if any(state.durable)
    ]
    if not files:
        return None
    path, content = files[lot % len(files)]
    written = [position for position, byte in enumerate(content) if byte]
    place = Rotten(str(path), written[lot // len(files) % len(written)], lot % 8)
    disk.flip_bit(path, place.position, place.bit)
    return place
