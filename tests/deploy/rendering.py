"""Renders the Helm chart with Helm's own engine, offline: the one of the helm-python-sdk package, or a `helm`
on the PATH.

Renders values to manifests and validates them with Kubernetes' own schemas. The engine is a Go runtime with
its own threads, so it runs in a separate process. Without an engine, the calling test is skipped with a
reason.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "ponor"
SCHEMAS: Final = Path(__file__).with_name("schemas")
RELEASE: Final = "demo"
NAMESPACE: Final = "streams"
KUBERNETES_VERSIONS: Final = ("1.28", "1.34")
"""The oldest and a recent supported version, if their schemas are available."""
SMALLEST: Final[Mapping[str, Any]] = {"objectStore": {"url": "s3://bucket/ponor?region=eu-central-1"}}
ENGINE: Final = """
import json, sys
import helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    files = chart.render(json.load(sys.stdin), name=sys.argv[2], namespace=sys.argv[3])
json.dump(files, sys.stdout)
"""


class RefusedError(Exception):
    """The chart refuses these values; the message is Helm's."""


def render_files(values: Mapping[str, Any]) -> dict[str, str]:
    """Text by template.

    Raises:
        RefusedError: a template or the values' schema refuses.
    """
    chart, given = str(CHART), json.dumps(values)
    if importlib.util.find_spec("helm_python") is not None:
        done = _run((sys.executable, "-c", ENGINE, chart, RELEASE, NAMESPACE), given)
        return {Path(name).name: text for name, text in json.loads(done).items()}
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip(
            "neither helm-python-sdk nor helm is here: the chart is not rendered, only what was rendered"
            " before is checked"
        )
    text = _run((helm, "template", RELEASE, chart, "--namespace", NAMESPACE, "--values", "-"), given)
    return {"all.yaml": text}


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Manifests, in the order of their templates."""
    return [
        manifest
        for name, text in sorted(render_files(values).items())
        if name.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest is not None
    ]


def check_manifests(manifests: list[dict[str, Any]]) -> None:
    """Validate every manifest strictly against the schema of its kind: an unknown field is an error."""
    assert manifests
    for manifest in manifests:
        _check(json.dumps(manifest))


def of_kind(manifests: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    """The single manifest of a kind whose name ends with this."""
    found = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, f"{len(found)} of {kind} *{ending}"
    return found[0]


@cache
def _check(text: str) -> None:
    """Cached: most values change few manifests, and reading Kubernetes' schemas is slow."""
    manifest = json.loads(text)
    own = SCHEMAS / f"{manifest['kind'].lower()}.json"
    if own.exists():
        jsonschema.validate(manifest, json.loads(own.read_text()))
        return
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


@cache
def _run(command: tuple[str, ...], given: str) -> str:
    """Cached by values."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RefusedError(done.stderr)
    return done.stdout
