"""Planning of stream set object compactions: large runs become stream objects, the others share one
stream set object.

`iterations.py` assigns blocks to iterations that fit into memory. `test_compaction_planning.py`
contains the worked example of the design. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponor_runtime.identity import StreamId

from s3stream.compaction.iterations import IterationCutter
from s3stream.compaction.plan import CompactionPlan, Iteration, PlanLimits, PlannedOutput
from s3stream.compaction.sources import Run, SourceBlock, SourceIndex, live_blocks, runs_of
from s3stream.errors import CompactionLimitError
from s3stream.ports import StreamState


def plan_set_objects(
    sources: Sequence[SourceIndex],
    streams: Mapping[StreamId, StreamState],
    limits: PlanLimits,
    *,
    force_split: bool = False,
) -> CompactionPlan:
    """Plan how to replace these stream set objects of one node.

    A run (contiguous offsets of a stream) of at least the split size becomes a stream object. If an iteration
    ends within the run, one stream object ends there and the next iteration begins another. All other runs go
    into one stream set object that is written part by part over the iterations.

    Args:
        sources: objects to replace.
        streams: existing streams with their start offsets. Data of other streams and data below a
            start is dropped.
        limits: limits of memory, calls and sizes.
        force_split: every run becomes a stream object regardless of its size. If one commit cannot take all,
            the largest are chosen; the others stay in a stream set object for the next forced split.

    Raises:
        SourcesDisagreeError: two sources contain the same offset, or a later offset has an older epoch.
        CompactionLimitError: the plan exceeds a limit, which the message names. Fewer sources or a
            higher limit may help.
    """
    blocks = live_blocks(sources, streams)
    _check_bounds(blocks, limits)
    runs = runs_of(blocks)
    located = tuple(source.object for source in sources)
    own = _own_objects(runs, limits, force_split=force_split)
    if len(sources) == 1 and not own and len(blocks) == len(sources[0].blocks):
        return CompactionPlan(located, (), (), is_settled=True)
    while True:
        outputs, iterations = _cut(runs, frozenset(own), limits)
        excess = len(outputs) - limits.objects_max
        if excess <= 0:
            return CompactionPlan(located, outputs, iterations)
        if len(own) <= 1:
            raise CompactionLimitError(
                f"the task would write {len(outputs)} objects, but one commit takes at most"
                f" {limits.objects_max}; plan fewer sources"
            )
        # A run that spans iterations becomes several objects, and the iteration boundaries depend
        # on `own`. The outputs must therefore be planned again after each reduction of `own`.
        del own[max(1, len(own) - excess) :]


def _own_objects(runs: Sequence[Run], limits: PlanLimits, *, force_split: bool) -> list[int]:
    """Return the numbers of the runs that become stream objects: the largest ones, at most as many as one
    commit takes.

    The other runs go into the stream set object, from which a later compaction copies them again.
    The smallest runs are the cheapest to copy twice.
    """
    size_bytes_min = 0 if force_split else limits.split_size_bytes
    wanted = [number for number, run in enumerate(runs) if run.size_bytes >= size_bytes_min]
    wanted.sort(key=lambda number: -runs[number].size_bytes)  # stable: equal sizes stay in stream order
    is_all = len(wanted) == len(runs) <= limits.objects_max
    return wanted if is_all else wanted[: max(1, limits.objects_max - 1)]


def _cut(
    runs: Sequence[Run], own: frozenset[int], limits: PlanLimits
) -> tuple[tuple[PlannedOutput, ...], tuple[Iteration, ...]]:
    shared_blocks = sum(len(run.blocks) for number, run in enumerate(runs) if number not in own)
    cutter = IterationCutter(limits, shared_blocks=shared_blocks)
    for number, run in enumerate(runs):
        if number in own:
            cutter.add_stream_object(run.blocks)
        else:
            cutter.add_shared(run.blocks)
    return cutter.finish()


def _check_bounds(blocks: Sequence[SourceBlock], limits: PlanLimits) -> None:
    if len(blocks) > limits.blocks_max:
        raise CompactionLimitError(
            f"the sources hold {len(blocks)} blocks; a plan takes at most {limits.blocks_max}:"
            " plan fewer sources"
        )
    stream_count = len({block.entry.stream_id for block in blocks})
    if stream_count > limits.streams_max:
        raise CompactionLimitError(
            f"the sources hold {stream_count} streams; a plan takes at most {limits.streams_max}:"
            " plan fewer sources"
        )
    largest = max((block.entry.size_bytes for block in blocks), default=0)
    needed = limits.part_size_bytes_min - 1 + largest
    if needed > limits.budget_bytes:
        # The largest block must fit next to carried bytes, which are less than a part. Otherwise
        # the plan could make no progress.
        raise CompactionLimitError(
            f"a block of {largest} bytes, together with bytes that are too few for a part,"
            f" needs {needed} bytes; raise the budget of {limits.budget_bytes} bytes"
        )
