"""What a session on a device needs and has not, and the figures that sessions have taken.

``python -m tests.gpu.figures need`` names every missing thing with its package, and ends with
status 1 where there is one. ``python -m tests.gpu.figures table FOLDER`` prints what the files of
``tests.gpu.bench`` in a folder say, as lines of Markdown, and which figures are missing.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.models import MODELS

MODULES = {
    **{name: name for name in ("numpy", "onnx", "msgspec", "networkx", "platformdirs", "rich")},
    **{name: name for name in ("scipy", "jinja2", "highspy", "psutil", "filelock", "pytest")},
    **{name: name for name in ("torch", "torchvision", "transformers", "timm", "onnxscript")},
    **{"sqlite_utils": "sqlite-utils", "tvm_ffi": "apache-tvm-ffi", "tvm": "apache-tvm"},
    **{"xdist": "pytest-xdist", "pytest_timeout": "pytest-timeout"},
}
"""What is imported, and the package that has it; the last line is of the tests."""
PRECISIONS = ("float16", "float32")
COLLAGE, EAGER, COMPILED = "Collage", "torch eager", "torch.compile max-autotune"


def missing() -> Iterator[str]:
    """Yield what a session needs that is not here, each with what to do about it."""
    absent = [package for module, package in MODULES.items() if not _is_here(module)]
    if absent:
        yield f"Python packages: pip install {' '.join(absent)}"
    if not (shutil.which("g++") or shutil.which("clang++")):
        yield "a C++ compiler: install g++"
    if not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        yield "nvcc: install the CUDA toolkit (CUTLASS's kernels are compiled by it)"
    if any(not _is_here(module) for module in ("tvm", "msgspec", "psutil")):
        yield "(whether there is a device was not asked: the packages above are needed for that)"
        return
    from collage_engine.machine.cuda import cuda_probe
    from collage_engine.support.errors import ToolchainError
    from collage_engine.toolchains.registry import all_names, get

    reason = cuda_probe().reason
    if reason is not None:
        yield f"a device: {reason}"
    for name in all_names():
        toolchain = get(name)
        if "cuda" in toolchain.about.targets:
            try:
                getattr(toolchain, "source", lambda: None)()
            except ToolchainError as error:
                yield f"{toolchain.about.title}: {error}; {toolchain.about.install}"


def _is_here(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def table(folder: Path) -> Iterator[str]:
    """Yield a table of the figures in a folder, the mean of their ratios, and what is missing."""
    yield "| model | precision | ours, µs | torch.compile | eager | ours to compiled | errors |"
    yield "|---|---|---|---|---|---|---|"
    left: list[str] = []
    for precision in PRECISIONS:
        ratios = []
        for model in MODELS:
            file = folder / f"{model}-{precision}.json"
            figures = json.loads(file.read_text()) if file.exists() else {"subjects": {}}
            subjects = figures["subjects"]
            compiled = subjects.get(COMPILED, {})
            if "ours_to_it" in compiled:
                ratios.append(compiled["ours_to_it"])
            if not figures.get("complete"):
                left.append(f"{model} {precision}")
            if subjects:
                yield _row(model, precision, subjects)
        if ratios:
            mean = statistics.geometric_mean(ratios)
            yield f"| geometric mean of {len(ratios)} | {precision} | | | | {mean:.3f} | |"
    yield f"\nMissing figures: {', '.join(left) or 'none'}."


def _row(model: str, precision: str, subjects: dict[str, Any]) -> str:
    taken = [subjects.get(name, {}) for name in (COLLAGE, COMPILED, EAGER)]
    times = [f"{each['median_us']:,.0f}" if "median_us" in each else "–" for each in taken]
    errors = [f"{each['max_rel_error']:.1e}" if "max_rel_error" in each else "–" for each in taken]
    ratio = taken[1].get("ours_to_it")
    cells = [model, precision, *times, f"{ratio:.3f}" if ratio else "–", ", ".join(errors)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    match sys.argv[1:]:
        case ["need"]:
            lines = list(missing())
            print("\n".join(lines))
            raise SystemExit(bool(lines))
        case ["table", folder]:
            print("\n".join(table(Path(folder))))
        case _:
            raise SystemExit("usage: python -m tests.gpu.figures need | table FOLDER")


if __name__ == "__main__":
    main()
