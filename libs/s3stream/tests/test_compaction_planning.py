"""Plans of stream set object compactions: the worked example of the design, and properties of any plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.compaction.plan import CompactionPlan, OutputKind, PlanLimits, PlannedOutput, PlannedRead
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import ObjectLocation, SourceIndex
from s3stream.errors import CompactionLimitError, SourcesDisagreeError
from s3stream.objects.format import ENTRY, BlockEntry
from s3stream.ports import StreamState

from tests.examples import examples


def source(number: int, *ranges: tuple[int, int, int], block_offsets: int = 5) -> SourceIndex:
    """Describe an object of ranges (stream, start, end), with one byte per offset, in blocks of some
    offsets.
    """
    blocks: list[BlockEntry] = []
    position = 0
    for stream, start, end in sorted(ranges):
        for first in range(start, end, block_offsets):
            last = min(first + block_offsets, end)
            blocks.append(
                BlockEntry(StreamId(stream), StreamEpoch(0), first, last, -1, position, last - first, 1, 0)
            )
            position += last - first
    return SourceIndex(ObjectLocation(ObjectId(number), "ns", 0, position + 64 * len(blocks) + 48), blocks)


def streams(starts: dict[int, int]) -> dict[StreamId, StreamState]:
    return {
        StreamId(stream): StreamState(StreamId(stream), StreamEpoch(0), start, 1 << 40)
        for stream, start in starts.items()
    }


def entries_of(output: PlannedOutput) -> list[BlockEntry]:
    return [BlockEntry._make(fields) for fields in ENTRY.iter_unpack(output.index)]


def offsets(entries: Sequence[BlockEntry]) -> str:
    """Format blocks as the design does: `S0 0–25 + S1 30–120`."""
    joined: list[tuple[int, int, int]] = []
    for entry in entries:
        start = entry.start_offset
        if joined and joined[-1][0] == entry.stream_id and joined[-1][2] == start:
            start = joined.pop()[1]
        joined.append((entry.stream_id, start, entry.end_offset))
    return " + ".join(f"S{stream} {start}–{end}" for stream, start, end in joined)


class Told:
    """Format a plan as the design does. Sources are SSO-0, SSO-1 …; the new SSO gets the next
    number; stream objects are SO-0, SO-1 …
    """

    def __init__(self, plan: CompactionPlan) -> None:
        self.plan = plan
        kinds = [output.kind for output in plan.outputs]
        self.has_shared = OutputKind.STREAM_SET_OBJECT in kinds

    def reads(self, iteration: int) -> list[str]:
        return [
            f"SSO-{self.plan.sources[read.source].object_id}"
            f" [{offsets([block.entry for block in read.blocks])}]"
            for read in self.plan.iterations[iteration].reads
        ]

    def writes(self, iteration: int) -> list[str]:
        return [
            f"{self._name(part.output)} {self._part(part.output, part.number, part.is_last)}"
            f" ({offsets(self._blocks_of_part(iteration, place))})"
            for place, part in enumerate(self.plan.iterations[iteration].parts)
        ]

    def _name(self, number: int) -> str:
        if self.plan.outputs[number].kind is OutputKind.STREAM_SET_OBJECT:
            return f"SSO-{len(self.plan.sources)}"
        return f"SO-{number - self.has_shared}"

    def _part(self, number: int, part: int, is_last: bool) -> str:
        if not self.plan.outputs[number].is_multipart:
            return "one put"
        return f"part {part}" + (", the last" if is_last else "")

    def _blocks_of_part(self, iteration: int, number: int) -> list[BlockEntry]:
        part = self.plan.iterations[iteration].parts[number]
        before = sum(
            other.size_bytes
            for each in self.plan.iterations[: iteration + 1]
            for other in each.parts
            if other.output == part.output and other.number < part.number
        )
        return [
            entry
            for entry in entries_of(self.plan.outputs[part.output])
            if before <= entry.position < before + part.size_bytes
        ]


def test_worked_example() -> None:
    sources = [
        source(0, (0, 0, 20), (1, 30, 60), (3, 210, 230)),
        source(1, (0, 20, 25), (1, 60, 120)),
        source(2, (2, 400, 500), (3, 230, 270)),
    ]
    limits = PlanLimits(
        budget_bytes=150,
        split_size_bytes=80,
        part_size_bytes_min=1,
        part_size_bytes=80,
        read_bytes_max=1000,
        block_bytes_max=1,  # listed block by block: none are joined
    )

    plan = plan_set_objects(sources, streams({0: 0, 1: 30, 2: 400, 3: 210}), limits)

    told = Told(plan)
    assert len(plan.iterations) == 2
    # Iteration 1
    assert told.reads(0) == [
        "SSO-0 [S0 0–20 + S1 30–60]",
        "SSO-1 [S0 20–25 + S1 60–120]",
        "SSO-2 [S2 400–435]",
    ]
    assert told.writes(0) == [
        "SSO-3 part 1 (S0 0–25)",
        "SO-0 part 1 (S1 30–110)",
        "SO-0 part 2, the last (S1 110–120)",
        "SO-1 one put (S2 400–435)",
    ]
    assert plan.iterations[0].held_bytes == 150
    # Iteration 2
    assert told.reads(1) == ["SSO-0 [S3 210–230]", "SSO-2 [S2 435–500 + S3 230–270]"]
    assert told.writes(1) == ["SSO-3 part 2, the last (S3 210–270)", "SO-2 one put (S2 435–500)"]
    # Five reads in total, then one commit
    assert sum(len(iteration.reads) for iteration in plan.iterations) == 5
    assert [(output.kind.value, offsets(entries_of(output))) for output in plan.outputs] == [
        ("sso", "S0 0–25 + S3 210–270"),
        ("so", "S1 30–120"),
        ("so", "S2 400–435"),
        ("so", "S2 435–500"),
    ]


@pytest.mark.parametrize("split_size_bytes", [61, 70, 90])
def test_worked_example_is_the_same_for_every_allowed_threshold(
    split_size_bytes: int,
) -> None:
    sources = [
        source(0, (0, 0, 20), (1, 30, 60), (3, 210, 230)),
        source(1, (0, 20, 25), (1, 60, 120)),
        source(2, (2, 400, 500), (3, 230, 270)),
    ]
    limits = PlanLimits(150, split_size_bytes, 1, 80, 1000)
    plan = plan_set_objects(sources, streams({0: 0, 1: 30, 2: 400, 3: 210}), limits)
    assert [offsets(entries_of(output)) for output in plan.outputs] == [
        "S0 0–25 + S3 210–270",
        "S1 30–120",
        "S2 400–435",
        "S2 435–500",
    ]


class TestWhatIsDropped:
    def test_blocks_below_the_start_and_deleted_streams_are_dropped(self) -> None:
        plan = plan_set_objects(
            [source(0, (0, 0, 20), (1, 0, 20)), source(1, (0, 20, 30))], streams({0: 10}), LIMITS
        )
        assert [offsets(entries_of(output)) for output in plan.outputs] == ["S0 10–30"]

    def test_a_block_that_spans_the_start_stays_whole(self) -> None:
        plan = plan_set_objects([source(0, (0, 0, 20)), source(1, (0, 20, 30))], streams({0: 7}), LIMITS)
        assert [offsets(entries_of(output)) for output in plan.outputs] == ["S0 5–30"]

    def test_fully_expired_sources_are_replaced_by_nothing(self) -> None:
        plan = plan_set_objects([source(0, (0, 0, 20))], streams({0: 20}), LIMITS)
        assert (plan.outputs, plan.iterations, plan.is_settled) == ((), (), False)


class TestParts:
    def test_bytes_too_few_for_a_part_are_carried_over(self) -> None:
        """The stream set object gets 10 bytes per stream; parts have at least 25."""
        shared = [(stream, 0, 10) for stream in range(0, 20, 2)]
        own = [(stream, 0, 60) for stream in range(1, 20, 2)]
        limits = PlanLimits(100, 50, part_size_bytes_min=25, part_size_bytes=30, read_bytes_max=1000)
        plan = plan_set_objects(
            [source(0, *shared), source(1, *own)], streams(dict.fromkeys(range(20), 0)), limits
        )
        carried = [iteration.carried_bytes for iteration in plan.iterations]
        assert any(carried)
        assert max(carried) < 25
        assert max(iteration.held_bytes for iteration in plan.iterations) <= 100
        check_parts(plan, limits)

    def test_force_split_leaves_no_stream_set_object(self) -> None:
        plan = plan_set_objects(
            [source(0, (0, 0, 10), (1, 0, 10), (2, 5, 10))],
            streams({0: 0, 1: 0, 2: 0}),
            LIMITS,
            force_split=True,
        )
        assert [(output.kind.value, offsets(entries_of(output))) for output in plan.outputs] == [
            ("so", "S0 0–10"),
            ("so", "S1 0–10"),
            ("so", "S2 5–10"),
        ]

    def test_a_forced_split_beyond_one_commit_leaves_a_narrower_set_object(self) -> None:
        wide = source(0, *((stream, 0, 10) for stream in range(6)))
        limits = PlanLimits(1000, 80, 1, objects_max=4)
        first = plan_set_objects([wide], streams(dict.fromkeys(range(6), 0)), limits, force_split=True)
        assert [(output.kind.value, offsets(entries_of(output))) for output in first.outputs] == [
            ("sso", "S3 0–10 + S4 0–10 + S5 0–10"),
            ("so", "S0 0–10"),
            ("so", "S1 0–10"),
            ("so", "S2 0–10"),
        ]
        rest = SourceIndex(ObjectLocation(ObjectId(9), "ns", 0, 0), entries_of(first.outputs[0]))
        second = plan_set_objects([rest], streams(dict.fromkeys(range(6), 0)), limits, force_split=True)
        assert [output.kind.value for output in second.outputs] == ["so", "so", "so"]

    def test_a_forced_split_beyond_one_commit_takes_the_largest_runs(self) -> None:
        sizes = {0: 10, 1: 30, 2: 20, 3: 40, 4: 5}
        wide = source(0, *((stream, 0, size) for stream, size in sizes.items()))
        limits = PlanLimits(1000, 10, 1, objects_max=3)
        for force_split in (True, False):
            plan = plan_set_objects([wide], streams(dict.fromkeys(sizes, 0)), limits, force_split=force_split)
            assert [(output.kind.value, offsets(entries_of(output))) for output in plan.outputs] == [
                ("sso", "S0 0–10 + S2 0–20 + S4 0–5"),
                ("so", "S1 0–30"),
                ("so", "S3 0–40"),
            ]

    def test_a_run_split_by_iterations_counts_as_several_objects(self) -> None:
        wide = source(0, (0, 0, 25), (1, 0, 25), (2, 0, 5), (3, 0, 5))
        limits = PlanLimits(20, 80, 1, objects_max=5)
        plan = plan_set_objects([wide], streams(dict.fromkeys(range(4), 0)), limits, force_split=True)
        assert [(output.kind.value, offsets(entries_of(output))) for output in plan.outputs] == [
            ("sso", "S2 0–5 + S3 0–5"),
            ("so", "S0 0–20"),
            ("so", "S0 20–25"),
            ("so", "S1 0–15"),
            ("so", "S1 15–25"),
        ]


class TestRefusals:
    def test_a_forced_split_whose_first_run_exceeds_one_commit(self) -> None:
        limits = PlanLimits(10, 80, 1, objects_max=2)
        with pytest.raises(
            CompactionLimitError, match="the task would write 4 objects, but one commit takes at most 2"
        ):
            plan_set_objects(
                [source(0, (0, 0, 30), (1, 0, 5))], streams({0: 0, 1: 0}), limits, force_split=True
            )

    def test_sources_with_the_same_offset_are_refused(self) -> None:
        with pytest.raises(SourcesDisagreeError, match="objects 3 and 4 both contain offset 15"):
            plan_set_objects([source(3, (0, 0, 20)), source(4, (0, 15, 30))], streams({0: 0}), LIMITS)

    def test_a_block_too_large_beside_a_part_is_refused(self) -> None:
        limits = PlanLimits(50, 20, part_size_bytes_min=30, part_size_bytes=30)
        with pytest.raises(CompactionLimitError, match="needs 54 bytes; raise the budget of 50"):
            plan_set_objects([source(0, (0, 0, 25), block_offsets=25)], streams({0: 0}), limits)

    @pytest.mark.parametrize(
        ("bounds", "words"),
        [
            ({"streams_max": 2}, "3 streams; a plan takes at most 2"),
            ({"blocks_max": 5}, "6 blocks; a plan takes at most 5"),
        ],
    )
    def test_an_exceeded_limit_is_named(self, bounds: dict[str, int], words: str) -> None:
        limits = PlanLimits(1000, 10, 1, **bounds)
        with pytest.raises(CompactionLimitError, match=words):
            plan_set_objects(
                [source(0, *((stream, 0, 10) for stream in range(3)))],
                streams(dict.fromkeys(range(3), 0)),
                limits,
            )


LIMITS = PlanLimits(
    budget_bytes=150, split_size_bytes=80, part_size_bytes_min=1, part_size_bytes=80, read_bytes_max=1000
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[SourceIndex], dict[StreamId, StreamState], PlanLimits]:
    """Generate sources that share streams, with gaps between ranges; trims and deletions; limits of any
    size.
    """
    source_count = draw(st.integers(1, 5))
    dealt: list[list[tuple[int, int, int]]] = [[] for _ in range(source_count)]
    starts: dict[int, int] = {}
    for stream in range(draw(st.integers(1, 8))):
        offset = draw(st.integers(0, 50))
        begin = offset
        for number in range(source_count):
            offset += draw(st.sampled_from([0, 0, 0, 7]))
            length = draw(st.integers(0, 90))
            if length:
                dealt[number].append((stream, offset, offset + length))
            offset += length
        if draw(st.booleans()) or draw(st.booleans()):
            starts[stream] = draw(st.one_of(st.just(begin), st.integers(0, offset + 5)))
    block_offsets = draw(st.integers(1, 20))
    sources = [
        source(number, *ranges, block_offsets=block_offsets) for number, ranges in enumerate(dealt) if ranges
    ]
    part_min = draw(st.integers(1, 40))
    limits = PlanLimits(
        budget_bytes=block_offsets + part_min - 1 + draw(st.integers(0, 200)),
        split_size_bytes=draw(st.integers(1, 150)),
        part_size_bytes_min=part_min,
        part_size_bytes=part_min + draw(st.integers(0, 60)),
        read_bytes_max=draw(st.integers(1, 200)),
        block_bytes_max=draw(st.sampled_from([1, 30, 512 * 1024])),
        # A budget of one byte creates an object for every byte.
        objects_max=2_000,
    )
    return sources, streams(starts), limits


@settings(max_examples=examples(300), deadline=None)
@given(cases(), st.booleans())
def test_properties_of_any_plan(
    case: tuple[list[SourceIndex], dict[StreamId, StreamState], PlanLimits], force_split: bool
) -> None:
    sources, alive, limits = case
    plan = plan_set_objects(sources, alive, limits, force_split=force_split)
    wanted = wanted_blocks(sources, alive)
    if plan.is_settled:
        assert len(sources) == 1
        assert not force_split
        assert len(wanted) == len(sources[0].blocks)
        return
    check_coverage(plan, wanted)
    check_kinds(plan, limits, force_split)
    check_parts(plan, limits)
    check_memory(plan, limits, sources)
    check_convergence(plan, alive, limits, force_split)


@settings(max_examples=examples(200), deadline=None)
@given(cases(), st.integers(2, 12))
def test_repeated_forced_splits_end_without_a_set_object(
    case: tuple[list[SourceIndex], dict[StreamId, StreamState], PlanLimits], objects_max: int
) -> None:
    sources, alive, limits = case
    limits = replace(limits, objects_max=objects_max, block_bytes_max=1)
    while sources:
        try:
            plan = plan_set_objects(sources, alive, limits, force_split=True)
        except CompactionLimitError:
            return  # the budget splits the first run into more objects than one commit takes
        check_coverage(plan, wanted_blocks(sources, alive))
        check_parts(plan, limits)
        check_memory(plan, limits, sources)
        assert len(plan.outputs) <= objects_max
        assert not plan.is_settled
        rest = [each for each in plan.outputs if each.kind is OutputKind.STREAM_SET_OBJECT]
        assert len(rest) <= 1
        assert len(rest) < len(plan.outputs) or not plan.outputs
        location = ObjectLocation(ObjectId(99), "ns", 0, 0)
        sources = [SourceIndex(location, entries_of(each)) for each in rest]


def wanted_blocks(
    sources: Sequence[SourceIndex], alive: dict[StreamId, StreamState]
) -> set[tuple[StreamId, int, int]]:
    """Return the blocks that may still be read."""
    return {
        (entry.stream_id, entry.start_offset, entry.end_offset)
        for each in sources
        for entry in each.blocks
        if entry.stream_id in alive and entry.end_offset > alive[entry.stream_id].start_offset
    }


def check_coverage(plan: CompactionPlan, wanted: set[tuple[StreamId, int, int]]) -> None:
    """Check that every live block is in exactly one output, alone or joined, and that outputs are
    in order and describe their content.
    """
    read = [
        (block.entry.stream_id, block.entry.start_offset, block.entry.end_offset)
        for iteration in plan.iterations
        for each in iteration.reads
        for block in each.blocks
    ]
    assert sorted(read) == sorted(wanted)
    written = [entry for output in plan.outputs for entry in entries_of(output)]
    assert offsets(sorted(written)) == offsets(
        [
            BlockEntry(stream, StreamEpoch(0), start, end, -1, 0, end - start, 1, 0)
            for stream, start, end in sorted(wanted)
        ]
    )
    assert sum(entry.record_count for entry in written) == len(wanted)
    for output in plan.outputs:
        entries = entries_of(output)
        assert entries[0].position == 0
        for a, b in pairwise(entries):
            assert b.position == a.position + a.size_bytes
            assert (a.stream_id, a.end_offset) <= (b.stream_id, b.start_offset)
        assert output.data_bytes == entries[-1].position + entries[-1].size_bytes
        told = [(part.stream_id, part.start_offset, part.end_offset) for part in output.ranges]
        assert " + ".join(f"S{stream} {start}–{end}" for stream, start, end in told) == offsets(entries)


def check_kinds(plan: CompactionPlan, limits: PlanLimits, force_split: bool) -> None:
    """Check that at most one stream set object exists, comes first, and contains no large run, and
    that each stream object has one range.
    """
    for number, output in enumerate(plan.outputs):
        if output.kind is OutputKind.STREAM_OBJECT:
            assert len(output.ranges) == 1
            continue
        assert number == 0
        assert not force_split
        sizes = dict.fromkeys(output.ranges, 0)
        for entry in entries_of(output):
            for part in output.ranges:
                if (
                    part.stream_id == entry.stream_id
                    and part.start_offset <= entry.start_offset < part.end_offset
                ):
                    sizes[part] += entry.size_bytes
        assert max(sizes.values()) < limits.split_size_bytes


def check_parts(plan: CompactionPlan, limits: PlanLimits) -> None:
    """Check that the parts of an output are numbered in order, cover it, and have legal sizes."""
    for number, output in enumerate(plan.outputs):
        parts = [part for iteration in plan.iterations for part in iteration.parts if part.output == number]
        assert [part.number for part in parts] == list(range(1, output.part_count + 1))
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert all(part.size_bytes >= limits.part_size_bytes_min for part in parts[:-1])
        assert sum(part.size_bytes for part in parts) == output.data_bytes


def check_memory(plan: CompactionPlan, limits: PlanLimits, sources: Sequence[SourceIndex]) -> None:
    """Check that no iteration exceeds the budget, and that the planned moves produce the outputs.

    A block's bytes are its name.
    """
    memory = [(-1, -1)] * limits.budget_bytes
    uploaded: dict[int, list[tuple[int, int]]] = {}
    for iteration in plan.iterations:
        assert iteration.held_bytes <= limits.budget_bytes
        for read in iteration.reads:
            check_read(read, limits, sources)
            for block in read.blocks:
                assert block.place >= iteration.carried_bytes
                for at in range(block.entry.size_bytes):
                    memory[block.place + at] = (block.entry.stream_id, block.entry.start_offset + at)
        for part in iteration.parts:
            uploaded.setdefault(part.output, []).extend(memory[part.place : part.place + part.size_bytes])
    for number, output in enumerate(plan.outputs):
        expected = [
            (entry.stream_id, offset)
            for entry in entries_of(output)
            for offset in range(entry.start_offset, entry.end_offset)
        ]
        assert uploaded[number] == expected


def check_read(read: PlannedRead, limits: PlanLimits, sources: Sequence[SourceIndex]) -> None:
    """Check that each read is one contiguous piece of one source."""
    assert read.size_bytes <= limits.read_bytes_max or len(read.blocks) == 1
    position = read.position
    held = set(sources[read.source].blocks)
    for block in read.blocks:
        assert block.entry in held
        assert block.entry.position == position
        position += block.entry.size_bytes
    assert position == read.position + read.size_bytes


def check_convergence(
    plan: CompactionPlan, alive: dict[StreamId, StreamState], limits: PlanLimits, force_split: bool
) -> None:
    """Check that compacting the resulting stream set object again would do nothing."""
    for output in plan.outputs:
        if output.kind is OutputKind.STREAM_SET_OBJECT:
            location = ObjectLocation(ObjectId(99), "ns", 0, output.size_bytes)
            again = plan_set_objects([SourceIndex(location, entries_of(output))], alive, limits)
            assert again.is_settled
