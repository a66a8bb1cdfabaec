"""`ponor doctor storage` distinguishes safe from unsafe stores: a directory, a real S3 server, and
servers with known flaws.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from s3stream.stores.probe.port_checks import PORT_CHECKS, Probe, run_port_checks
from s3stream.stores.probe.report import Finding, Grade
from s3stream.stores.probe.s3_checks import S3_CHECKS, run_s3_checks
from s3stream.stores.probe.s3_requests import S3Requests
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location

from tests.e2e.load.cluster import ponor
from tests.integration.flawed_s3 import Flaw, FlawedS3
from tests.integration.seaweed_server import SeaweedServer

QUICK = ["--racers", "6", "--rounds", "2"]


def examine(url: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code, and the report as JSON."""
    done = subprocess.run(
        [ponor(), "doctor", "storage", url, *QUICK, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **(environment or {})},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def grades(report: dict[str, Any]) -> dict[str, str]:
    return {row["check"]: row["grade"] for row in report["checks"]}


def test_a_directory_is_safe_and_left_unchanged(tmp_path: Path) -> None:
    code, report = examine(f"file://{tmp_path / 'store'}")
    assert code == 0
    assert report["safe"] is True
    assert set(grades(report).values()) == {"ok"}
    assert "conditional puts race" in grades(report)
    assert list((tmp_path / "store" / "objects").iterdir()) == []


@pytest.mark.s3
def test_a_real_server_is_safe_until_a_rule_expires_its_objects(tmp_path: Path) -> None:
    with SeaweedServer(tmp_path) as server:
        code, report = examine(server.url("some/prefix"), server.environment)
        assert code == 0, report
        found = grades(report)
        for check in ("conditional puts race", "lost answers", "checksums", "multipart uploads", "ranges"):
            assert found[check] == "ok", report
        assert server.objects() == {}
        assert server.open_multipart_uploads() == []

        rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "some"}, "Expiration": {"Days": 7}}
        server.client().put_bucket_lifecycle_configuration(
            Bucket=server.bucket, LifecycleConfiguration={"Rules": [rule]}
        )
        code, report = examine(server.url("some/prefix"), server.environment)
        assert code == 1
        assert "'tidy' deletes objects after 7 days" in report["verdict"]


def test_a_server_without_flaws_is_safe() -> None:
    """Control of the tests below: their verdicts come only from the flaw."""
    with FlawedS3() as server:
        code, report = examine(server.url, server.environment)
        assert code == 0, report
        assert (
            grades(report)["checksums"] == "warning"
        )  # it accepts damaged bodies: only a secondary protection is missing
        assert server.objects == {}


def test_a_server_that_ignores_conditions_is_unsafe_with_a_reason() -> None:
    with FlawedS3(Flaw.IGNORES_CONDITIONS) as server:
        code, report = examine(server.url, server.environment)
    assert code == 1
    assert report["safe"] is False
    assert report["verdict"].startswith("UNSAFE")
    details = {row["check"]: row["detail"] for row in report["checks"] if row["grade"] == "unsafe"}
    assert "6 of 6 concurrent create-only puts" in details["conditional puts race"]
    assert "ignored" in details["taken keys stay"]
    assert "replaced" in details["lost answers"]


@pytest.mark.parametrize(
    ("flaw", "check", "word"),
    [
        (Flaw.NONE, "conditional puts race", ""),
        (Flaw.CHECKS_WITHOUT_LOCK, "conditional puts race", "not atomic"),
        (Flaw.CUTS_RANGES, "ranges", ""),
        (Flaw.LISTS_LATE, "listings", "1 objects are missing"),
        (Flaw.LOSES_PARTS, "large objects", "was read as 16777216 bytes"),
        (Flaw.LOSES_PARTS, "multipart uploads", "different bytes"),
    ],
)
async def test_each_flaw_is_detected_by_its_check(flaw: Flaw, check: str, word: str) -> None:
    with FlawedS3(flaw) as server:
        location = parse_s3_location(server.url, server.environment)
        found: list[Finding] = []
        port_check = [pair for pair in PORT_CHECKS if pair[0] == check]
        stores = [S3ObjectStore(location), S3ObjectStore(location)]
        await run_port_checks(Probe(stores, "probe", 6, 2), found.append, port_check)
        s3_check = tuple(pair for pair in S3_CHECKS if pair[0] == check)
        await asyncio.to_thread(run_s3_checks, S3Requests(location), "data/probe", s3_check, found.append)
    (finding,) = found
    assert finding.grade is (Grade.OK if flaw is Flaw.NONE else Grade.UNSAFE)
    assert word in finding.detail


def test_rules_for_other_prefixes_and_tags_are_harmless() -> None:
    rules = (
        "<LifecycleConfiguration>"
        "<Rule><ID>a</ID><Status>Enabled</Status><Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>"
        "<Rule><ID>b</ID><Status>Disabled</Status><Filter><Prefix/></Filter><Expiration><Days>1</Days></Expiration></Rule>"
        "<Rule><ID>c</ID><Status>Enabled</Status><Filter><Tag><Key>k</Key><Value>v</Value></Tag></Filter>"
        "<Expiration><Days>1</Days></Expiration></Rule>"
        "<Rule><ID>d</ID><Status>Enabled</Status><Filter><Prefix>data</Prefix></Filter>"
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>"
        "</LifecycleConfiguration>"
    )
    with FlawedS3(lifecycle=rules) as server:
        _, report = examine(server.url, server.environment)
    assert grades(report)["lifecycle rules"] == "ok"


def test_an_invalid_store_is_refused_in_one_line() -> None:
    done = subprocess.run([ponor(), "doctor", "storage", "ftp://x"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == "ponor: ftp://x: write file:///DIR or s3://BUCKET/PREFIX?endpoint=URL"
