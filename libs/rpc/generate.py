"""Generate the protobuf messages and their type stubs from proto/ into libs/rpc/src/ponor.

No gRPC stubs are needed: services exchange frames over `ponor_rpc.grpc_network`. The proto package, its
directory and the Python package have the same path, so the generated imports work unchanged.
"""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

MEMBER = Path(__file__).resolve().parent
PROTO_ROOT = MEMBER.parent.parent / "proto"
OUTPUT = MEMBER / "src"


def generate() -> None:
    """Regenerate libs/rpc/src/ponor."""
    from grpc_tools import protoc

    target = OUTPUT / "ponor"
    if target.exists():
        shutil.rmtree(target)
    protos = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    include = str(files("grpc_tools") / "_proto")
    # Absolute path: the interpreter's directory need not be on PATH.
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    arguments = ["protoc", f"-I{PROTO_ROOT}", f"-I{include}", f"--plugin=protoc-gen-mypy={plugin}"]
    outputs = [f"--python_out={OUTPUT}", f"--mypy_out=quiet:{OUTPUT}"]
    if protoc.main([*arguments, *outputs, *protos]) != 0:
        sys.exit("protoc failed; see its output above")
    (target / "py.typed").touch()
    for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (directory / "__init__.py").touch()


if __name__ == "__main__":
    generate()
