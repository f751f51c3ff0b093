"""Generates proto/hs_proto/v1/*_pb2* from the .proto files; --check compares with what is committed.

Run it with the tools of the `protos` dependency group (`make protos`): files made by a newer compiler refuse an older
runtime, so the compiler's version is the floor of our grpcio range.
"""

import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"


def generate(target: Path) -> None:
    sources = sorted(str(p.relative_to(PROTO)) for p in (PROTO / "hs_proto" / "v1").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={target}", f"--grpc_python_out={target}",
               f"--mypy_out=quiet:{target}", f"--mypy_grpc_out=quiet:{target}", *sources]  # fmt: skip
    # protoc looks for its mypy plugins on the path; they stand beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(command, cwd=PROTO, check=True, env={**os.environ, "PATH": path})


def check() -> int:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        generate(target)
        stale = [
            made.relative_to(target)
            for made in sorted(target.rglob("*_pb2*"))
            if not (PROTO / made.relative_to(target)).exists()
            or not filecmp.cmp(made, PROTO / made.relative_to(target), shallow=False)
        ]
    for path in stale:
        print(f"proto/{path} is not what the .proto files give: run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    generate(PROTO)
