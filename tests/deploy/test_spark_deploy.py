"""Files that deploy Spark, without a container engine and without Kubernetes: they are valid and
refer to existing things.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.composition import read_composition
from tests.deploy.rendering import check_manifests
from tests.deploy.test_compose import SERVICE_KEYS
from tests.peers.artifacts import SPARK_VERSION

ROOT: Final = Path(__file__).parents[2]
SPARK: Final = ROOT / "deploy" / "spark"
CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
JOBS: Final = "/opt/ponor/jobs/"
EXECUTOR: Final = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "EXECID",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-XX:+Use G1",
    "SPARK_JAVA_OPT_10": "-Dnever=1",
}
"""As Spark's scheduler passes it; there is no option 2, so option 10 is not one either."""


@pytest.fixture
def services() -> dict[str, Any]:
    """Services of both compose files together."""
    content = yaml.safe_load((SPARK / "compose.yaml").read_text())
    assert {key for key in content if not key.startswith("x-")} == {"services"}
    return {**read_composition()["services"], **content["services"]}


def spark_services(services: dict[str, Any]) -> dict[str, Any]:
    return {name: spec for name, spec in services.items() if name.startswith("spark-")}


def test_the_compose_file_is_a_master_and_two_workers(services: dict[str, Any]) -> None:
    own = spark_services(services)
    assert set(own) == {"spark-master", "spark-worker-0", "spark-worker-1"}
    for name, spec in own.items():
        assert set(spec) <= SERVICE_KEYS, name
        assert spec["hostname"] == name
        assert set(spec.get("depends_on", {})) <= set(services)
        assert spec["command"][0] == "spark-class"
        assert spec["command"][1].startswith("org.apache.spark.deploy.")
    port = own["spark-master"]["command"][own["spark-master"]["command"].index("--port") + 1]
    for name in ("spark-worker-0", "spark-worker-1"):
        assert own[name]["command"][-1] == f"spark://spark-master:{port}"


def test_spark_has_its_own_read_only_key(services: dict[str, Any]) -> None:
    identities = json.loads((ROOT / "deploy" / "compose" / "s3.json").read_text())["identities"]
    for spec in spark_services(services).values():
        assert sorted(spec["environment"]) == sorted(CREDENTIALS)
        key = {"accessKey": spec["environment"]["AWS_ACCESS_KEY_ID"]}
        key["secretKey"] = spec["environment"]["AWS_SECRET_ACCESS_KEY"]
        (identity,) = [each for each in identities if key in each["credentials"]]
        assert {action.partition(":")[0] for action in identity["actions"]} == {"Read", "List"}


def test_the_policy_allows_only_reads() -> None:
    policy = json.loads((SPARK / "iam-policy.json").read_text())
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert actions == {"s3:GetObject", "s3:ListBucket"}
    assert all(statement["Effect"] == "Allow" for statement in policy["Statement"])
    (objects,) = [each for each in policy["Statement"] if each["Action"] == ["s3:GetObject"]]
    assert objects["Resource"] == ["arn:aws:s3:::BUCKET/PREFIX/*"]


def test_the_application_is_valid_for_kubernetes_and_the_operator() -> None:
    manifests = application()
    check_manifests(manifests)
    assert [each["kind"] for each in manifests] == [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "SparkApplication",
    ]
    assert len({each["metadata"]["namespace"] for each in manifests}) == 1
    spec, account = manifests[-1]["spec"], manifests[0]["metadata"]["name"]
    assert {spec["driver"]["serviceAccount"], spec["executor"]["serviceAccount"]} == {account}
    assert manifests[2]["subjects"][0]["name"] == account
    assert spec["sparkVersion"] == SPARK_VERSION


def test_the_started_jobs_are_in_the_image() -> None:
    copied = dict(re.findall(r"^COPY (spark/\S+) (/\S+)$", (SPARK / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == {"spark/jobs": JOBS.rstrip("/")}
    texts = [(SPARK / name).read_text() for name in ("compose.yaml", "application.yaml")]
    named = [found for text in texts for found in re.findall(rf"{JOBS}(\w+\.py)", text)]
    assert len(named) == 2
    for name in named:
        assert (ROOT / "spark" / "jobs" / name).exists(), name


def test_the_image_is_built_from_existing_files(services: dict[str, Any]) -> None:
    lines = (SPARK / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    for name in copied:
        assert (ROOT / name).exists(), name
    assert lines[-1] == 'ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/entrypoint.sh"]'
    assert "USER 185:185" in lines
    for spec in spark_services(services).values():
        assert (SPARK / spec["build"]["context"]).resolve() == ROOT
        assert (ROOT / spec["build"]["dockerfile"]).exists()


def test_the_image_installs_the_versions_of_the_tests() -> None:
    """Every version and hash of the image's lock is one of the tests' lock."""
    tested = pins("spark.lock")
    shipped = pins("spark-image.lock")
    assert shipped[f"pyspark=={SPARK_VERSION}"]
    for name, hashes in shipped.items():
        assert hashes <= tested[name], name


def test_every_member_that_the_source_needs_is_built() -> None:
    built = set(re.findall(r"libs/\w+|\bspark\b(?=;)", (SPARK / "install.sh").read_text()))
    assert built == {"spark", *(f"libs/{name}" for name in needed_members())}


def test_an_executor_gets_the_options_that_spark_gave_its_pod(tmp_path: Path) -> None:
    """A program that prints its arguments replaces Java."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    words = run_entrypoint("executor", {**EXECUTOR, "JAVA_HOME": str(tmp_path)}).stdout.splitlines()
    assert words[:4] == ["-Dspark.driver.port=7078", "-XX:+Use G1", "-Xms1024m", "-Xmx1024m"]
    assert words[4:6] == ["-cp", "/opt/spark/conf::/opt/spark/jars/*"]
    assert words[6] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    told = dict(zip(words[7::2], words[8::2], strict=True))
    assert told == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"], "--executor-id": "EXECID", "--cores": "2", "--app-id": "spark-1",  # noqa: E501
        "--hostname": "10.0.0.1", "--resourceProfileId": "0", "--podName": "job-exec-1",
    }  # fmt: skip


def test_other_arguments_are_a_command() -> None:
    assert run_entrypoint("echo", {"SPARK_HOME": "/opt/spark"}, "a b").stdout == "a b\n"


def run_entrypoint(role: str, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint as a process of this machine."""
    given = {**environment, "PATH": os.environ["PATH"]}
    command = [str(SPARK / "entrypoint.sh"), role, *words]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True)


def application() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SPARK / "application.yaml").read_text()))


def needed_members() -> set[str]:
    """Direct and indirect dependencies of ponor-spark among the members."""
    folders = {}
    for path in sorted((ROOT / "libs").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        folders[project["name"]] = (path.parent.name, project["dependencies"])
    waiting = list(tomllib.loads((ROOT / "spark" / "pyproject.toml").read_text())["project"]["dependencies"])
    found: set[str] = set()
    while waiting:
        folder, more = folders.get(waiting.pop(), ("", []))
        if folder and folder not in found:
            found.add(folder)
            waiting.extend(more)
    return found


def pins(lock: str) -> dict[str, set[str]]:
    """Hashes by NAME==VERSION, for any marker."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / lock).read_text().splitlines():
        if not line.startswith(" "):
            hashes = found.setdefault(line.split()[0], set())
        else:
            hashes.add(line.strip(" \\"))
    return found
