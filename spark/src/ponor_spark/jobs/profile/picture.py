"""Draw a profile as a picture of one page.

It shows when records arrived, how even the partitions are, how large records are, and the main numbers.
matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ponor_spark.errors import OptionError
from ponor_spark.jobs.profile.report import headline, human_bytes, human_count, human_width, instant, share
from ponor_spark.jobs.profile.topic_profile import TopicProfile

INK: Final = "#1f2933"
FAINT: Final = "#9aa5b1"
GRID: Final = "#e4e7eb"
RECORDS: Final = "#2f6f8f"
BYTES: Final = "#d9822b"
KINDS: Final = (".png", ".svg", ".pdf")
PARTITIONS_NAMED_MAX: Final = 24
STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 10,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "ponor",
}


def draw(found: TopicProfile, path: Path) -> None:
    """Write the picture; the file name's suffix gives its format.

    Raises:
        OptionError: an unknown suffix, or nothing to draw.
    """
    check_kind(path)
    if not found.records:
        raise OptionError(f"--picture: topic {found.topic} has no records in this range; remove the option")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure: Any = plt.figure(figsize=(11, 7), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.12, w_pad=0.12, hspace=0.06, wspace=0.06)
        grid = figure.add_gridspec(2, 3, height_ratios=(1.1, 1))
        _times(figure.add_subplot(grid[0, :]), found)
        _partitions(figure.add_subplot(grid[1, 0]), found)
        _sizes(figure.add_subplot(grid[1, 1]), found)
        _words(figure.add_subplot(grid[1, 2]), found)
        figure.suptitle(headline(found), x=0.012, ha="left", fontsize=14, fontweight="bold")
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=144, metadata=metadata)
        plt.close(figure)


def check_kind(path: Path) -> None:
    """Raise OptionError unless the name has a supported suffix and its directory exists."""
    if path.suffix not in KINDS:
        raise OptionError(
            f"--picture: {path.name} has no supported picture suffix; use one of {', '.join(KINDS)}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"--picture: there is no directory {path.parent}; create it, or name another")


def _times(axes: Any, found: TopicProfile) -> None:
    starts = [instant(each.start_ms) for each in found.bins]
    width_days = found.width_ms / 86_400_000
    axes.bar(
        starts, [each.records for each in found.bins], width=width_days * 0.92, align="edge", color=RECORDS
    )
    axes.set_title(f"Records by {human_width(found.width_ms)} (bars), bytes (line), UTC")
    axes.set_xlim(starts[0], instant(found.bins[-1].start_ms + found.width_ms))
    _counts(axes.yaxis, human_count)
    axes.set_ylim(0)
    axes.grid(visible=False, axis="x")
    _dates(axes)
    second = axes.twinx()
    middles = [instant(each.start_ms + found.width_ms // 2) for each in found.bins]
    many = len(middles) > 1
    second.plot(
        middles,
        [each.size_bytes for each in found.bins],
        color=BYTES,
        linewidth=1.6,
        marker="" if many else "o",
    )
    _counts(second.yaxis, human_bytes)
    second.set_ylim(0, 1.05 * max(each.size_bytes for each in found.bins) or 1)
    second.grid(visible=False)
    second.tick_params(axis="y", colors=BYTES, length=0)
    axes.tick_params(axis="y", colors=RECORDS, length=0)


def _partitions(axes: Any, found: TopicProfile) -> None:
    bytes_by = [each.size_bytes for each in found.partitions]
    positions = range(len(bytes_by))
    axes.bar(positions, bytes_by, color=RECORDS, width=0.82)
    mean = sum(bytes_by) / len(bytes_by)
    axes.axhline(mean, color=BYTES, linewidth=1.4)
    axes.set_title("Bytes by partition" + (f", largest {max(bytes_by) / mean:.1f} × mean" if mean else ""))
    axes.set_ylim(0, 1.08 * max(bytes_by) or 1)
    axes.grid(visible=False, axis="x")
    if len(bytes_by) <= PARTITIONS_NAMED_MAX:
        axes.set_xticks(list(positions), [str(each.partition) for each in found.partitions])
    axes.tick_params(length=0)
    _counts(axes.yaxis, human_bytes)


def _sizes(axes: Any, found: TopicProfile) -> None:
    filled = [at for at, count in enumerate(found.sizes) if count]
    classes = range(filled[0], filled[-1] + 1)
    axes.bar(classes, [found.sizes[at] for at in classes], color=RECORDS, width=0.9)
    axes.set_title("Records by bytes of key and value")
    every = max(1, -(-len(classes) // 6))
    marks = [at for at in classes if (at - classes[0]) % every == 0]
    axes.set_xticks(marks, ["0" if at == 0 else f"<{_short_bytes(1 << at)}" for at in marks])
    axes.grid(visible=False, axis="x")
    axes.tick_params(length=0)
    _counts(axes.yaxis, human_count)


def _words(axes: Any, found: TopicProfile) -> None:
    axes.axis("off")
    first = min(each.first_timestamp_ms for each in found.partitions)
    last = max(each.last_timestamp_ms for each in found.partitions)
    half, _, nearly_all, largest = (*map(human_bytes, found.size_bytes_quantiles), "-", "-", "-", "-")[:4]
    lines: Sequence[tuple[str, str]] = (
        ("records", f"{found.records:,}"),
        ("bytes of keys and values", human_bytes(found.size_bytes)),
        ("distinct keys, about", human_count(found.keys_distinct)),
        ("without a key", share(found.key_nulls, found.records)),
        ("without a value", share(found.value_nulls, found.records)),
        ("median record", half),
        ("99 % are at most", nearly_all),
        ("largest record", largest),
        ("first", f"{instant(first):%Y-%m-%d %H:%M}"),
        ("last", f"{instant(last):%Y-%m-%d %H:%M}"),
    )
    for number, (name, value) in enumerate(lines):
        y = 1.02 - number * 0.105
        axes.text(0.02, y, name, transform=axes.transAxes, color="#616e7c", va="top")
        axes.text(1.0, y, value, transform=axes.transAxes, ha="right", va="top", fontweight="bold")


def _counts(axis: Any, words: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if words is human_bytes:
        # Ticks at powers of two show round numbers of KiB or MiB.
        highest = axis.get_data_interval()[1]
        step = 1 << max(0, math.ceil(math.log2(max(highest, 1) / 4)))
        axis.set_major_locator(FixedLocator([step * number for number in range(6)]))
        axis.set_major_formatter(FuncFormatter(lambda count, _: human_bytes(count).replace(".0 ", " ")))
        return
    axis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda count, _: words(count)))


def _short_bytes(count: int) -> str:
    return human_bytes(count).replace(".0", "").replace("iB", "").replace(" B", "").replace(" ", "")


def _dates(axes: Any) -> None:
    from matplotlib import dates

    words: Any = dates
    locator = words.AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(words.ConciseDateFormatter(locator))
