"""Tests of reading a micro-batch's ranges from Spark's offset log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ponor_spark.jobs.iceberg.checkpoint import Checkpoint, CheckpointError, offsets_of

IDS = {"#topicIds": {"orders": "aa", "bills": "bb"}}


def log(**offsets: dict[str, int]) -> str:
    return f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({**offsets, **IDS})}'


def checkpoint(folder: Path, *batches: str) -> Checkpoint:
    (folder / "offsets").mkdir()
    (folder / "metadata").write_text('{"id":"the query"}')
    for number, text in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(text)
    return Checkpoint(f"{folder}/", lambda path: Path(path).read_text())


def test_a_batch_goes_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    found = checkpoint(
        tmp_path, log(orders={"0": 5, "1": 0}), log(orders={"0": 9, "1": 0, "2": 4}, bills={"0": 3})
    )
    assert found.query_id() == "the query"
    assert found.batch(0).ranges == {("aa", 0): (None, 5), ("aa", 1): (None, 0)}
    assert found.batch(1).ranges == {
        ("aa", 0): (5, 9),
        ("aa", 1): (0, 0),
        ("aa", 2): (None, 4),
        ("bb", 0): (None, 3),
    }
    assert found.batch(1).topic_ids == {"orders": "aa", "bills": "bb"}


def test_committed_end_is_that_of_the_newest_committed_batch(tmp_path: Path) -> None:
    found = checkpoint(
        tmp_path, log(orders={"0": 5}), log(orders={"0": 9}, bills={"0": 3}), log(orders={"0": 11})
    )
    assert found.done([]) == {}
    assert found.done(["0", ".0.crc"]) == {"aa": {0: 5}}
    assert found.done(["0", "1", ".2.tmp"]) == {"aa": {0: 9}, "bb": {0: 3}}


def test_recreated_topic_starts_from_its_beginning(tmp_path: Path) -> None:
    again = log(orders={"0": 2}).replace('"aa"', '"cc"')
    assert checkpoint(tmp_path, log(orders={"0": 5}), again).batch(1).ranges == {("cc", 0): (None, 2)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v2\n{}\n{}", "version 'v2'"),
        ("v1\n{}", "with 0 sources"),
        ("v1\n{}\n{}\n{}", "with 2 sources"),
        ("v1\n{}\n17", "not an offset of a topic"),
        ("v1\n{}\nnot json", "not an offset of a topic"),
        ('v1\n{}\n{"orders": {"0": 1}}', "no id of topic orders"),
    ],
)
def test_a_foreign_checkpoint_is_named(text: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        offsets_of(text, "s3a://lake/checkpoint/offsets/0")
    assert str(caught.value).startswith("s3a://lake/checkpoint/offsets/0: ")
