"""Generate the protobuf messages and their type stubs from proto/ into libs/rpc/src/ponor.

Only messages are generated: services are served as streams of frames (ponor_rpc.grpc_network), so no gRPC stubs are needed. The proto
package, the directory and the Python package have the same path, therefore the generated imports need no rewriting.
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
    """Write libs/rpc/src/ponor anew."""
    from grpc_tools import protoc

    target = OUTPUT / "ponor"
    if target.exists():
        shutil.rmtree(target)
    protos = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    include = str(files("grpc_tools") / "_proto")
    # Named outright: the interpreter's own directory need not be on PATH.
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    arguments = ["protoc", f"-I{PROTO_ROOT}", f"-I{include}", f"--plugin=protoc-gen-mypy={plugin}"]
    outputs = [f"--python_out={OUTPUT}", f"--mypy_out=quiet:{OUTPUT}"]
    if protoc.main([*arguments, *outputs, *protos]) != 0:
        sys.exit("protoc failed; its complaint stands above")
    (target / "py.typed").touch()
    for directory in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (directory / "__init__.py").touch()


if __name__ == "__main__":
    generate()
