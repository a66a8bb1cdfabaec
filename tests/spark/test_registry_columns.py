"""A decoded column next to the raw one in Spark: types, errors, and one request to the registry per
worker.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from ponor_spark.errors import OptionError
from ponor_spark.jobs.registry.decoding import Decoding, decoded

from spark.tests.schema_registry import registry_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
}


def test_decoded_rows_in_spark(spark: SparkSession) -> None:
    with registry_server() as server:
        number = server.register("orders-value", json.dumps(SCHEMA), "JSON")
        head = b"\0" + number.to_bytes(4, "big")
        values = [head + json.dumps({"id": n, "lines": [{"sku": str(n)}]}).encode() for n in range(200)]
        rows = [(n, bytearray(value)) for n, value in enumerate([*values, b"raw", head + b"{"])] + [
            (999, None)
        ]
        frame = spark.createDataFrame(rows, "offset long, value binary").repartition(8)
        found = decoded(frame, Decoding(server.url, "orders-value"))
        assert (
            found.schema["decoded"].dataType.simpleString()
            == "struct<id:bigint,lines:array<struct<sku:string>>>"
        )
        collected = {row["offset"]: row for row in found.collect()}
        assert len(collected) == len(rows)
        assert all(collected[n]["decoded"]["lines"][0]["sku"] == str(n) for n in range(200))
        assert {n for n, row in collected.items() if row["decoded_error"]} == {200, 201}
        assert collected[999]["decoded"] is None
        assert bytes(collected[200]["value"]) == b"raw"
        assert server.asked[f"/schemas/ids/{number}"] <= spark.sparkContext.defaultParallelism * 2, (
            "kept between tasks of a worker"
        )
        with pytest.raises(OptionError, match="subject: the registry has no subject other-value"):
            decoded(frame, Decoding(server.url, "other-value"))
