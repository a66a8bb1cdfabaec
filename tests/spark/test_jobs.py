"""The jobs on a real cluster, started as from a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ponor_spark.jobs import session
from ponor_spark.jobs.audit import consumer_view
from ponor_spark.jobs.command import spark_app
from ponor_spark.jobs.parquet import MANIFEST, SUCCESS
from typer.testing import CliRunner, Result

from tests.spark.iceberg_kills import catalog_in, expire_all_but_current
from tests.spark.kafka_rows import WAIT_S, Sent, assorted, consumed, create_topic, produce
from tests.spark.topics_cluster import TopicsCluster

pytestmark = pytest.mark.timeout(900)
Ponor = Callable[..., Result]


@pytest.fixture
def ponor(topics: TopicsCluster) -> Ponor:
    """Run `ponor spark …` in this process with the tests' session."""

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(spark_app, [*words, "--bootstrap", topics.kafka], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture(scope="module")
def orders(topics: TopicsCluster) -> str:
    """A topic with every kind of row, in objects."""
    create_topic(topics.kafka, "job-orders", partitions=3)
    produce(topics.kafka, "job-orders", assorted(600, 3, seed=34))
    topics.until_in_objects("job-orders")
    return "job-orders"


def test_a_profile_counts_what_a_consumer_counts(
    topics: TopicsCluster, ponor: Ponor, orders: str, tmp_path: Path
) -> None:
    picture = tmp_path / "orders.png"
    found = json.loads(ponor("profile", orders, "-o", "json", "--picture", str(picture)).stdout)
    rows = consumed(topics.kafka, orders)
    assert found["records"] == len(rows)
    assert found["size_bytes"] == sum(len(row.key or b"") + len(row.value or b"") for row in rows)
    assert found["key_nulls"] == sum(row.key is None for row in rows)
    assert found["value_nulls"] == sum(row.value is None for row in rows)
    keys = len({row.key for row in rows if row.key is not None})
    assert found["keys_distinct_estimate"] == pytest.approx(keys, rel=0.15)
    assert (
        sum(each["records"] for each in found["histogram"]["bins"]) == sum(found["sizes_log2"]) == len(rows)
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_topic_is_refused_before_a_session_starts(
    ponor: Ponor, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "prepare", lambda: pytest.fail("Spark was prepared"))
    for words in (["profile", "missing"], ["verify", f"{orders},missing"]):
        refused = ponor(*words, code=1)
        assert refused.stderr.startswith("ponor: subscribe: there is no topic missing; correct the name")
        assert len(refused.stderr.splitlines()) == 1


def test_parquet_is_written_completely_or_not_at_all_and_never_overwritten(
    topics: TopicsCluster, ponor: Ponor, orders: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders.parquet"
    ponor("parquet", orders, str(path), "-O", "includeHeaders=true")
    written = topics.spark.read.parquet(str(path))
    rows = consumed(topics.kafka, orders)
    assert {(row.partition, row.offset, row.value) for row in rows} == {
        (row["partition"], row["offset"], None if row["value"] is None else bytes(row["value"]))
        for row in written.collect()
    }
    assert (path / SUCCESS).exists()
    assert json.loads((path / MANIFEST).read_text())["rows"] == len(rows)
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "no staging directory is left"
    again = ponor("parquet", orders, str(path), code=1)
    assert "already exists" in again.stderr
    assert len(again.stderr.splitlines()) == 1


def test_remains_of_a_killed_run_are_deleted_by_the_next(
    topics: TopicsCluster, orders: str, tmp_path: Path
) -> None:
    from ponor_spark.jobs.parquet import write

    staging = tmp_path / ".out.run1.staging"
    staging.mkdir()
    (staging / "part-from-before.parquet").write_text("half a file")
    done = write(topics.load(orders), str(tmp_path / "out"), "run1", partition_by=["date", "partition"])
    assert done.rows == len(consumed(topics.kafka, orders))
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_valid_topic_is_verified_against_a_consumer(
    topics: TopicsCluster, ponor: Ponor, orders: str
) -> None:
    found = json.loads(ponor("verify", orders, "--against-broker", "-o", "json").stdout)
    assert found["sound"]
    rows = consumed(topics.kafka, orders)
    assert (
        sum(each["rows"] for each in found["partitions"])
        == sum(each["consumer_rows"] for each in found["partitions"])
        == len(rows)
    )
    assert "are sound" in ponor("verify", orders).stdout


def test_a_part_of_a_topic_is_verified(ponor: Ponor, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        consumer_view, "SILENCE_S_MAX", 3_600.0
    )  # waits for the end of the range, not for silence
    bounds = {"0": 17, "1": 3, "2": 0}
    words = ["-O", f"startingOffsets={json.dumps({orders: bounds})}", "--against-broker", "-o", "json"]
    found = json.loads(ponor("verify", orders, *words).stdout)
    assert found["sound"]
    assert {str(each["partition"]): each["start_offset"] for each in found["partitions"]} == bounds


def test_gaps_of_a_compacted_topic_are_accepted(topics: TopicsCluster, ponor: Ponor) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "400",
    }
    create_topic(topics.kafka, "job-compacted", config=config)
    deadline = time.monotonic() + WAIT_S
    holes = 0
    while not holes:
        assert time.monotonic() < deadline, "the cleaner leaves no holes"
        produce(
            topics.kafka, "job-compacted", [Sent(0, b"key %d" % (n % 7), bytes(20_000)) for n in range(120)]
        )
        topics.until_in_objects("job-compacted")
        found = json.loads(ponor("verify", "job-compacted", "-o", "json").stdout)
        assert found["sound"], found
        holes = found["partitions"][0]["holes"]
    assert found["partitions"][0]["rows"] < found["partitions"][0]["end_offset"]


def test_damage_is_named_and_the_exit_code_is_one(topics: TopicsCluster, ponor: Ponor) -> None:
    create_topic(topics.kafka, "job-damaged", partitions=1)
    produce(topics.kafka, "job-damaged", [Sent(0, None, b"precious %d" % n) for n in range(50)])
    topics.until_in_objects("job-damaged")
    options = topics.snapshot("job-damaged")
    store = Path(options.object_store.removeprefix("file://"))
    damaged = [path for path in store.rglob("*") if path.is_file() and b"precious 7" in path.read_bytes()]
    assert damaged
    whole = {path: path.read_bytes() for path in damaged}
    try:
        for path, content in whole.items():
            path.write_bytes(content.replace(b"precious 7", b"precious 8", 1))
        result = ponor("verify", "job-damaged", code=1)
    finally:
        for path, content in whole.items():
            path.write_bytes(content)
    assert "problem:" in result.stderr
    assert "job-damaged" in result.stderr


def test_an_unwritable_place_gives_one_line(ponor: Ponor, orders: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    result = ponor("parquet", orders, str(tmp_path / "file" / "orders.parquet"), code=1)
    assert result.stderr.startswith("ponor: PATH: Spark cannot write there: ")
    result = iceberg(ponor, orders, tmp_path, "file/checkpoint", code=1)
    assert result.stderr.startswith("ponor: --checkpoint: Spark cannot write there: ")
    assert len(result.stderr.splitlines()) == 1


def iceberg(
    ponor: Ponor,
    topic: str,
    folder: Path,
    checkpoint: str,
    *more: str,
    table: str = "lake.orders",
    code: int = 0,
) -> Result:
    catalog_in(folder / "lake")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'lake' / 'catalog.db'}",
        "warehouse": (folder / "lake").as_uri(),
    }
    words = [word for name, value in properties.items() for word in ("--catalog-property", f"{name}={value}")]
    return ponor(
        "iceberg",
        topic,
        table,
        "--catalog",
        "kills",
        "--checkpoint",
        str(folder / checkpoint),
        *words,
        *more,
        code=code,
    )


def table_rows(folder: Path) -> list[tuple[int, int, bytes | None]]:
    found: Any = catalog_in(folder / "lake").load_table("lake.orders").scan().to_arrow()
    return sorted((row["partition"], row["offset"], row["value"]) for row in found.to_pylist())


def topic_rows(topics: TopicsCluster, topic: str) -> list[tuple[int, int, bytes | None]]:
    return sorted((row.partition, row.offset, row.value) for row in consumed(topics.kafka, topic))


def test_a_table_follows_its_topic_with_a_new_checkpoint_and_expired_snapshots(
    topics: TopicsCluster, ponor: Ponor, tmp_path: Path
) -> None:
    create_topic(topics.kafka, "job-lake", partitions=2)
    for turn, checkpoint in enumerate(("first", "first", "second", "second")):
        produce(topics.kafka, "job-lake", [Sent(n % 2, None, b"%d:%d" % (turn, n)) for n in range(40)])
        topics.until_in_objects("job-lake")
        iceberg(ponor, "job-lake", tmp_path, checkpoint, "-O", "maxOffsetsPerTrigger=30")
        assert table_rows(tmp_path) == topic_rows(topics, "job-lake")
        table = catalog_in(tmp_path / "lake").load_table("lake.orders")
        table.overwrite(table.scan().to_arrow())
        expire_all_but_current(table)
    iceberg(ponor, "job-lake", tmp_path, "second")
    assert table_rows(tmp_path) == topic_rows(topics, "job-lake"), "nothing new, nothing more"


def test_a_rolled_back_table_is_not_written(
    topics: TopicsCluster, ponor: Ponor, orders: str, tmp_path: Path
) -> None:
    iceberg(ponor, orders, tmp_path, "checkpoint", "-O", "maxOffsetsPerTrigger=100")
    table = catalog_in(tmp_path / "lake").load_table("lake.orders")
    first = table.history()[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    result = iceberg(ponor, orders, tmp_path, "checkpoint", code=1)
    assert "was rolled back or replaced" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_checkpoint_of_another_table_is_refused(ponor: Ponor, orders: str, tmp_path: Path) -> None:
    """The topic has no new data, so no batch could show what the new table lacks."""
    iceberg(ponor, orders, tmp_path, "checkpoint")
    result = iceberg(ponor, orders, tmp_path, "checkpoint", table="lake.other", code=1)
    assert "table lake.other has nothing of " in result.stderr
    assert "give --checkpoint a new one" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "NAMESPACE.TABLE: 'other'" in iceberg(ponor, orders, tmp_path, "new", table="other", code=1).stderr
    soon = iceberg(ponor, orders, tmp_path, "new", "--follow", "--interval", "soon", code=1)
    assert soon.stderr.startswith("ponor: --interval: 'soon' is not a Spark interval; write for example")
