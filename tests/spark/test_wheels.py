"""The real wheels of executors: in a separate environment they import, decode with the compiled
kernel, and start Spark without an installed Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = tuple(
    re.findall(
        r"^for member in (.*); do$", (ROOT / "deploy" / "spark" / "install.sh").read_text(), re.MULTILINE
    )[0].split()
)
"""The members that the image builds; only its script lists them."""
UV = Path(sys.executable).with_name("uv")
GENERATED = shutil.ignore_patterns("tests", "__pycache__", "*.so", "*.c", "*.new", "messages")
PROGRAM = """
import sys
from pathlib import Path
import ponor_spark, ponor_kafka, s3stream, ponor_metadata
place = Path(sys.prefix)
for module in (ponor_spark, ponor_kafka, s3stream, ponor_metadata):
    assert place in Path(module.__file__).parents, f"{module.__name__} is {module.__file__}, not the wheel's"
from ponor_spark.decode import kernel
assert kernel.__file__.endswith(".so"), kernel.__file__
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.clip import Clip
batch = bytes.fromhex(sys.argv[1])
decoder = BatchDecoder(["key", "value", "offset"], clip=Clip("t", 0, 100, 103))
decoder.feed(batch, 100)
rows = [row for batch in decoder.finish() for row in batch.to_pylist()]
from ponor_spark.java import SHIM_HOME
assert (SHIM_HOME / "bin" / "java").stat().st_mode & 0o111, "the shim lost its right to run"
print(rows)
"""


@pytest.mark.timeout(1_800)
def test_wheels_work_without_a_source_tree(tmp_path: Path) -> None:
    wheels = build(tmp_path / "sources", tmp_path / "wheels")
    compiled = [name for name in wheels if "none-any" not in name]
    assert len(wheels) == len(MEMBERS)
    assert {name.partition("-")[0] for name in compiled} >= {
        "ponor_spark",
        "s3stream",
        "ponor_metadata",
        "ponor_kafka",
    }
    python = environment(tmp_path / "venv", tmp_path / "wheels")
    command = [str(python), "-I", "-c", PROGRAM, stored_batch().hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [{"key": b"k%d" % number, "value": b"v" * number, "offset": 100 + number} for number in range(3)]
    assert done.stdout.strip() == str(rows)


def build(sources: Path, wheels: Path) -> list[str]:
    """Build the wheels from a copy without generated files. Tools come from the tests' environment;
    nothing is downloaded.
    """
    shutil.copytree(ROOT / "proto", sources / "proto")
    for member in MEMBERS:
        shutil.copytree(ROOT / member, sources / member, ignore=GENERATED)
    shutil.copy(ROOT / "libs" / "build_hook.py", sources / "libs")
    shutil.rmtree(sources / "libs" / "rpc" / "src" / "ponor", ignore_errors=True)
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for member in MEMBERS:
        command = [
            str(UV),
            "build",
            "--quiet",
            "--offline",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
        ]
        command += ["--out-dir", str(wheels), str(sources / member)]
        done = subprocess.run(command, env=tools, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{member}: {done.stderr[-3000:]}"
    return sorted(path.name for path in wheels.glob("*.whl"))


def environment(directory: Path, wheels: Path) -> Path:
    """A new environment with the wheels. Other packages come from the tests' environment, without
    its editable members.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=600)
    python = directory / "bin" / "python"
    install = [
        str(UV),
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--no-index",
        "--python",
        str(python),
    ]
    subprocess.run([*install, *map(str, sorted(wheels.glob("*.whl")))], check=True, timeout=600)
    packages = (
        directory / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    (packages / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return python


def stored_batch() -> bytes:
    """Three records as librdkafka and a broker would write them: lz4."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=3,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 16,
    )
    for number in range(3):
        builder.append(number, 1_000 + number, b"k%d" % number, b"v" * number, [])
    return bytes(builder.build())
