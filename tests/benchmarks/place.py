"""The main job on real models, cold and warm, as tables.

``python -m tests.benchmarks.place [MODEL …] [--threads N] [--budget TIME] [--cache DIR]``

A model is a name of ``tests.zoo`` or an .onnx file. Each is placed from an empty store, then
again from the store. Printed per model: what is exported and its latency, every baseline, the
additive error, the candidates, and the seconds of both runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "mnist",
    "light_resnet50",
    "light_squeezenet",
    "light_inception_v2",
    "mobilenet_v2",
    "bert",
)


def model_file(name: str, folder: Path) -> Path:
    """The .onnx file of a model given by name or path."""
    if name.endswith(".onnx"):
        return Path(name).resolve()
    if name == "mnist":
        return ROOT / "resources" / "models" / "mnist.onnx"
    path = folder / f"{name}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "tests.zoo", name, str(path)], check=True, cwd=ROOT)
    return path


def place(model: Path, cache: Path, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run of ``collage place --json``; the document it printed."""
    command = [
        sys.executable,
        "-m",
        "collage_engine",
        "place",
        str(model),
        "-o",
        str(out),
        "--json",
        "--budget",
        options.budget,
        "--session",
        str(out.with_suffix(".collage")),
    ]
    if options.threads:
        command += ["--threads", str(options.threads)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLLAGE_CACHE_DIR": str(cache)},
    )
    if done.returncode:
        raise SystemExit(f"{model}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def ms(us: float | None) -> str:
    return "–" if us is None else f"{us / 1000:.3f}"


def show(name: str, cold: dict[str, Any], warm: dict[str, Any]) -> None:
    """The tables of one model."""
    print(f"\n## {name}: {cold['model']['nodes']} operators, {cold['threads']} threads")
    print(
        "| run | winner | measured ms | estimated ms | additive error | partitions | "
        "toolchains | max_rel_error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for label, run in (("cold", cold), ("warm", warm)):
        placed = run["placement"]
        used: dict[str, int] = {}
        for part in placed["partitions"]:
            used[part["toolchain"]] = used.get(part["toolchain"], 0) + 1
        error = placed["additive_error_us"]
        share = "–" if error is None else f"{100 * error / placed['measured_us']:+.1f} %"
        mix = ", ".join(f"{k} {v}" for k, v in used.items())
        print(
            f"| {label} | {run['winner']} | {ms(placed['measured_us'])} | "
            f"{ms(placed['estimated_us'])} | {share} | {len(placed['partitions'])} | {mix} | "
            f"{run['max_rel_error']:.1e} |"
        )
    print("\n| baseline | kind | cold ms | warm ms |")
    print("|---|---|---|---|")
    again = {base["name"]: base for base in warm["baselines"]}
    for base in sorted(cold["baselines"], key=lambda b: b["measured_us"] or float("inf")):
        other = again.get(base["name"], {}).get("measured_us")
        note = "" if base["measured_us"] else f" ({base['reason']})"
        print(
            f"| {base['name']}{note} | {base['kind']} | {ms(base['measured_us'])} | {ms(other)} |"
        )
    print(
        "\n| run | enumerated | distinct | measured | store | invalid | skipped | import s | "
        "enumerate s | measure s | search s | build s | confirm s | total s |"
    )
    print("|---" * 14 + "|")
    for label, run in (("cold", cold), ("warm", warm)):
        c, s = run["candidates"], run["seconds"]
        cells = [
            c[k] for k in ("enumerated", "distinct", "measured", "from_store", "invalid", "skipped")
        ]
        times = [
            f"{s[k]:.1f}"
            for k in ("import", "enumerate", "measure", "search", "build", "confirm", "total")
        ]
        print(f"| {label} | " + " | ".join(map(str, [*cells, *times])) + " |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--cache", type=Path, help="keep the stores here (default: a fresh folder)")
    parser.add_argument("--keep", type=Path, help="keep models, artifacts and sessions here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        for name in options.models:
            model = model_file(name, keep)
            cache = (options.cache or Path(scratch)) / f"store-{model.stem}"
            out = keep / f"{model.stem}-artifact"
            cold = place(model, cache, out, options)
            warm = place(model, cache, out, options)
            show(name, cold, warm)


if __name__ == "__main__":
    main()
