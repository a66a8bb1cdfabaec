"""Picture of a topic's objects as SVG and as terminal blocks: a lane per partition, offsets from left to
right. No I/O.

Each object has a colour and a number. A stream object is one piece of one lane; a stream set object has
pieces in several.
"""

from __future__ import annotations

import colorsys
from html import escape
from typing import Final

from ponor_runtime.identity import ObjectId
from rich.text import Text

from tools.demo.holdings import HeldObject, TopicHoldings

LANE_X: Final = 96
LANE_WIDTH: Final = 1000
LANE_HEIGHT: Final = 34
LANE_GAP: Final = 14
TOP: Final = 96
LEGEND_ROW: Final = 22
LEGEND_COLUMNS: Final = 3
LABEL_WIDTH_MIN: Final = 22
"""Narrower pieces have no number."""
EDGE: Final = 1
"""Width of the white edge between pieces. A gap would show the hatching, which marks data not uploaded."""
FONT: Final = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"
HATCHING: Final = (
    "<defs><pattern id='wal' width='7' height='7' patternUnits='userSpaceOnUse'"
    " patternTransform='rotate(45)'>"
    "<rect width='7' height='7' fill='#eef0f3'/><rect width='2' height='7' fill='#9aa4b2'/></pattern></defs>"
)
LIGHT: Final = 0.55
BLOCK: Final = "█"
_GOLDEN_RATIO: Final = 0.618033988749895


def render_svg(held: TopicHoldings, ends: dict[int, int], subtitle: str) -> str:
    """Render one SVG document.

    `ends` are the partitions' end offsets; offsets without an object are hatched.
    """
    numbers = {each.object_id: number for number, each in enumerate(held.objects, 1)}
    scale = LANE_WIDTH / max(1, *ends.values())
    lanes_height = held.partitions * (LANE_HEIGHT + LANE_GAP)
    legend_y = TOP + lanes_height + 50
    rows = -(-len(held.objects) // LEGEND_COLUMNS)
    width, height = LANE_X + LANE_WIDTH + 40, legend_y + rows * LEGEND_ROW + 30
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width}"
            f" {height}' {FONT}>"
        ),
        HATCHING,
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        _text(LANE_X, 38, f"Which objects hold which offsets of {held.topic}", 20, weight="bold"),
        _text(LANE_X, 64, subtitle, 13, fill="#5b6675"),
    ]
    for partition in range(held.partitions):
        parts += _lane(held, partition, ends.get(partition, 0), scale, numbers)
    parts += _axis(max(ends.values(), default=0), scale, TOP + lanes_height + 4)
    for place, each in enumerate(held.objects):
        column, row = divmod(place, max(1, rows))
        x, y = LANE_X + column * (LANE_WIDTH // LEGEND_COLUMNS), legend_y + row * LEGEND_ROW
        number = numbers[each.object_id]
        parts.append(f"<rect x='{x}' y='{y}' width='16' height='16' rx='3' fill='{colour(number)}'/>")
        parts.append(_text(x + 24, y + 13, _describe(number, each, held), 12))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def render_terminal(held: TopicHoldings, ends: dict[int, int], width: int) -> list[Text]:
    """Render a line per partition in the colours of the SVG."""
    numbers = {each.object_id: number for number, each in enumerate(held.objects, 1)}
    most = max(1, *ends.values())
    lines = []
    for partition in range(held.partitions):
        end = ends.get(partition, 0)
        line = Text(f"partition {partition:>2} ", style="bold")
        for cell in range(max(1, round(width * end / most))):
            offset = cell * most / width
            holder = next(
                (
                    each
                    for each in held.holdings
                    if each.partition == partition and each.start <= offset < each.end
                ),
                None,
            )
            if holder is None:
                line.append("░", style="grey62")
            else:
                line.append(BLOCK, style=colour(numbers[holder.object_id]))
        line.append(f" {end:,}", style="grey62")
        lines.append(line)
    return lines


def colour(number: int) -> str:
    """Return the colour of the n-th object; consecutive numbers differ strongly in hue."""
    hue = number * _GOLDEN_RATIO % 1.0
    lightness = 0.44 if number % 2 else 0.54
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def ink_on(background: str) -> str:
    """Return the more readable text colour on a background, by its approximate relative luminance (WCAG)."""
    red, green, blue = (int(background[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "#1d2733" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > LIGHT else "#ffffff"


def _lane(
    held: TopicHoldings, partition: int, end: int, scale: float, numbers: dict[ObjectId, int]
) -> list[str]:
    y = TOP + partition * (LANE_HEIGHT + LANE_GAP)
    parts = [_text(LANE_X - 12, y + 22, f"partition {partition}", 13, anchor="end")]
    parts.append(
        f"<rect x='{LANE_X}' y='{y}' width='{max(1.0, end * scale):.1f}' height='{LANE_HEIGHT}'"
        " fill='url(#wal)'/>"
    )
    for each in held.holdings:
        if each.partition != partition:
            continue
        number = numbers[each.object_id]
        x, width = LANE_X + each.start * scale, (each.end - each.start) * scale
        parts.append(
            f"<rect x='{x:.1f}' y='{y}' width='{max(width, 0.8):.1f}' height='{LANE_HEIGHT}'"
            f" fill='{colour(number)}' stroke='#ffffff' stroke-width='{EDGE}'>"
            f"<title>object {each.object_id}: offsets [{each.start}, {each.end})</title></rect>"
        )
        if width >= LABEL_WIDTH_MIN:
            parts.append(
                _text(
                    x + width / 2,
                    y + 22,
                    str(number),
                    12,
                    fill=ink_on(colour(number)),
                    weight="bold",
                    anchor="middle",
                )
            )
    return parts


def _axis(end: int, scale: float, y: int) -> list[str]:
    step = _step(end)
    parts = [f"<line x1='{LANE_X}' y1='{y}' x2='{LANE_X + LANE_WIDTH}' y2='{y}' stroke='#9aa4b2'/>"]
    for offset in range(0, end + 1, step):
        x = LANE_X + offset * scale
        parts.append(f"<line x1='{x:.1f}' y1='{y}' x2='{x:.1f}' y2='{y + 6}' stroke='#9aa4b2'/>")
        parts.append(_text(x, y + 22, f"{offset:,}", 11, fill="#5b6675", anchor="middle"))
    return parts


def _step(end: int) -> int:
    """Return a round interval for about eight marks."""
    rough = max(1, end // 8)
    magnitude: int = 10 ** (len(str(rough)) - 1)
    return min(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)


def _describe(number: int, each: HeldObject, held: TopicHoldings) -> str:
    lanes = {one.partition for one in held.holdings if one.object_id == each.object_id}
    where = f"partition {min(lanes)}" if len(lanes) == 1 else f"{len(lanes)} partitions"
    return f"{number}: {each.kind} object, {each.size_bytes / 1024:,.0f} KiB, {where}"


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    *,
    fill: str = "#1d2733",
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' font-weight='{weight}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )
