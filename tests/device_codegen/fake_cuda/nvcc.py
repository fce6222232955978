"""Stands in for nvcc: makes a library for the CPU of CUDA source, for the device of ``device.cc``.

A kernel becomes ``launch_<name>``, thread by thread (``../cuda_on_cpu/device.h``), and
``sizes_<name>``, the bytes of its parameters. Only ``--cubin`` and ``--version`` are understood.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parents[1] / "cuda_on_cpu" / "device.h"
ASYNC = r'asm volatile\("cp\.async\.(?:wait_group \d+|commit_group);"[^;]*\);'
"""Groups of asynchronous copies; here every copy is done at once."""
KERNEL = re.compile(r"__global__[^;{]*?(\w+)\(([^)]*)\)\s*[;{]")


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print("nvcc: NVIDIA (R) Cuda compiler driver\nPretended for tests")
        return 0
    if "--cubin" not in arguments:
        print("error: the pretended nvcc compiles kernels for TVM only", file=sys.stderr)
        return 1
    result = Path(arguments[arguments.index("-o") + 1])
    text = for_the_cpu(Path(arguments[-1]).read_text())
    folder = Path(os.environ["PRETENDED_CUDA"]) / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(text.encode() + HEADER.read_bytes()).hexdigest()[:24]
    library = folder / f"{name}.so"
    if not library.exists():
        code = folder / f"{name}-{os.getpid()}.cpp"
        code.write_text(text)
        beside = code.with_suffix(".so")
        done = subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-O1",
                "-w",
                "-shared",
                "-fPIC",
                "-fvisibility=hidden",
                f"-I{os.environ['PRETENDED_CUDA_INCLUDE']}",
                str(code),
                "-o",
                str(beside),
            ],
            capture_output=True,
            text=True,
        )
        code.unlink()
        if done.returncode:
            print(done.stderr[:4000], file=sys.stderr)
            return 1
        beside.rename(library)
    shutil.copyfile(library, result)
    return 0


def for_the_cpu(source: str) -> str:
    """C++ of CUDA source."""
    kernels = dict.fromkeys(KERNEL.findall(source))
    code = re.sub(
        r"extern __shared__ (?:\w+\(\d+\) )?(\w+) (\w+)\[\];",
        r"\1* \2 = (\1*)dynamic_shared;",
        source,
    )
    code = re.sub(r"__shared__ (alignas\(\d+\)) ", r"\1 __shared__ ", code)
    code = re.sub(ASYNC, ";", code)
    code = re.sub(r"#include <(mma|cuda_fp16|cuda_bf16)\.h>", "", code)
    parts = [
        "#include <cuda_fp16.h>",
        "#include <cuda_bf16.h>",
        f'#include "{HEADER}"',
        code,
        "template <typename T> T given(void* p) { return *(T*)p; }",
        "template <typename T> T on_device(void* p) {",
        "  return (T)(*(unsigned long*)p & ~(1ul << 47)); }",
        '#define SHOWN extern "C" __attribute__((visibility("default")))',
    ]
    for name, parameters in kernels:
        kinds = [
            p.replace("__restrict__", "").replace("__grid_constant__", "").rsplit(maxsplit=1)[0]
            for p in filter(str.strip, parameters.split(","))
        ]
        values = ", ".join(
            f"{'on_device' if '*' in kind else 'given'}<{kind}>(a[{i}])"
            for i, kind in enumerate(kinds)
        )
        sizes = ", ".join([*(f"sizeof({kind})" for kind in kinds), "0"])
        parts += [
            f"static void call_{name}(void** a) {{ {name}({values}); }}",
            f"SHOWN void launch_{name}(void** a, const unsigned* g, const unsigned* b, bool d) "
            f"{{ launch(call_{name}, a, g, b, d); }}",
            f"SHOWN const unsigned char sizes_{name}[] = {{{sizes}}};",
        ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
