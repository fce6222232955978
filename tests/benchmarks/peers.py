"""Our artifact against other runtimes, each as its users run it, interleaved by rounds.

``python -m tests.benchmarks.peers [MODEL …] [--threads 1,2] [--rounds 50]
[--precision float32|bf16|int8 --tolerance T] [--cache DIR] [--out results.json]``
``python -m tests.benchmarks.peers --table results.json`` prints a results file as Markdown.

A model is a name of ``tests.zoo`` or an .onnx file; without any, the eleven (at int8: the
quantised ResNet block). Each is placed by ``collage place`` and its artifact run through its own
loader, beside ONNX Runtime, OpenVINO, ``torch.compile``, ncnn, MNN, TVM alone and oneDNN alone.
Every runtime has a process of its own that sleeps while another runs. Torch, ncnn (with pnnx) and
MNN may be in interpreters of their own: ``--python torch=… --python ncnn=…``. ``--out`` is written
after every model; what it holds is not measured again unless ``--again``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.machine.clocks import round_trip_ns
from collage_engine.machine.device import device, physical_cores
from collage_engine.toolchains.runtime.builder import find_compiler
from tests.benchmarks.peers_report import (
    FLOAT32,
    OURS,
    PeerEntry,
    PeersResult,
    PeerTime,
    headings,
)
from tests.benchmarks.peers_run import Load, Peer, PeerFailed
from tests.benchmarks.peers_specs import FLOAT_TWIN, place, specs_of
from tests.benchmarks.peers_stats import (
    RIGHT,
    Samples,
    against,
    best_other,
    column,
    middle,
    paired_ratio,
    pick_clock,
    spread,
)
from tests.benchmarks.peers_table import markdown, one_line, read_peers
from tests.benchmarks.place import model_file

ELEVEN = (
    "light_resnet50",
    "mobilenet_v2",
    "light_squeezenet",
    "light_inception_v2",
    "light_densenet121",
    "light_shufflenet",
    "bert_small",
    "gpt2_small",
    "unet_brain",
    "vit_b_block",
    "se_resnet50",
)
BEHIND = 3.0
"""A runtime so many times slower than the fastest after three rounds sits out the rest."""
LOWER = {"float32": (FLOAT32,), "bf16": (FLOAT32, "bf16"), "int8": (FLOAT32, "int8")}
"""Precisions of the runtimes that run beside ours."""
SAME = {"float32": (FLOAT32,), "bf16": ("bf16",), "int8": ("int8",)}


def interleave(
    peers: dict[str, Peer],
    samples: dict[str, list[tuple[float, float]]],
    rounds: int,
    options: argparse.Namespace,
) -> None:
    """Rounds handed to the processes in turn, in changing order; one that is gone sits out."""
    order = random.Random(sum(map(len, samples.values())))
    resting = set(samples) - set(peers)
    for _ in range(rounds):
        done = max(map(len, samples.values()), default=0)
        if done == 3:
            typical = {name: middle(column(s, "wall")) or 0.0 for name, s in samples.items()}
            fastest = min(typical.values())
            resting |= {n for n, us in typical.items() if us > BEHIND * fastest and n != OURS}
        for name in order.sample(list(samples), len(samples)):
            if name in resting:
                samples[name].append((-1.0, -1.0))
                continue
            time.sleep(options.rest)
            samples[name].append(peers[name].round(options.warm, options.seconds))


def launched(
    peers: dict[str, Peer],
    specs: dict[str, dict[str, Any]],
    keep: Path,
    options: argparse.Namespace,
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """The rounds of all launches, and the cores that other work kept busy meanwhile.

    Two processes with the same module differ by a few percent throughout (where their memory
    came to lie), which no number of rounds would average out: so each runtime is started anew
    for every launch. ``peers``: those of the first; what runs at the end is left in it.
    """
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    loads = []
    for number in range(options.launches):
        if number:
            for name, peer in list(peers.items()):
                peer.close()
                del peers[name]
                if samples[name][-1][0] >= 0:
                    peers[name] = Peer(specs[name], keep)
        load = Load()
        load.start([peer.pid for peer in peers.values()])
        least, more = divmod(options.rounds, options.launches)
        interleave(peers, samples, least + (number < more), options)
        loads.append(load.others())
    return dict(samples), sum(loads) / len(loads)


def measure(name: str, threads: int, keep: Path, options: argparse.Namespace) -> PeerEntry:
    """Place, build, time: one row."""
    model = model_file(name, keep)
    artifact = keep / f"{model.stem}-{threads}-{options.precision}"
    document = place(model, artifact, threads, options)
    manifest = json.loads((artifact / "manifest.json").read_text())
    sample = {
        "inputs": str(artifact / "sample_input.npz"),
        "outputs": str(artifact / "sample_output.npz"),
        "output_names": [about["name"] for about in manifest["outputs"]],
    }
    times: dict[str, PeerTime] = {}
    peers: dict[str, Peer] = {}
    specs: dict[str, dict[str, Any]] = {}
    try:
        for spec in specs_of(name, model, artifact, threads, keep, options):
            about = PeerTime(
                name=spec["name"],
                precision=spec["precision"],
                same_module=spec["name"] != OURS and is_same(spec.get("folder"), manifest),
            )
            try:
                specs[spec["name"]] = spec | sample
                peer = Peer(spec | sample, keep)
                peers[spec["name"]] = peer
                error = peer.error
                reason = None
                bound = options.tolerance or 0.0
                if not error <= max(bound, RIGHT[spec["precision"]]):
                    wrong = name not in FLOAT_TWIN or spec["name"] == OURS
                    reason = f"wrong numbers: max_rel_error {error:.2g}" if wrong else None
                times[spec["name"]] = msgspec.structs.replace(
                    about, version=peer.version, max_rel_error=error, reason=reason
                )
            except PeerFailed as failure:
                times[spec["name"]] = msgspec.structs.replace(about, reason=str(failure))
        before = round_trip(threads)
        samples, busy = launched(peers, specs, keep, options)
        trips = [ns for ns in (before, round_trip(threads)) if ns is not None]
    finally:
        for peer in peers.values():
            peer.close()
    clock = pick_clock(options.clock, threads, busy)
    entry = PeerEntry(
        model=name,
        threads=threads,
        precision=options.precision,
        tolerance=options.tolerance,
        launches=options.launches,
        load=busy,
        round_trip_ns=tuple(trips),
        clock=clock,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        nodes=document["model"]["nodes"],
        samples=dict(samples),
        winner=document["winner"],
        peers=tuple(timed(about, samples.get(key, ()), clock) for key, about in times.items()),
        **placed(document),
    )
    return judged(entry)


def round_trip(threads: int) -> float | None:
    """What a cache line takes between two cores and back, in ns; at one thread nobody asks."""
    return round_trip_ns(find_compiler().command) if threads > 1 else None


def is_same(folder: str | None, ours: dict[str, Any]) -> bool:
    """Whether an artifact is ours again: the same partitions by the same toolchains.

    Two builds of one placement differ in the order of some constants, hence not by hash.
    """
    path = Path(folder or "") / "manifest.json"
    if folder is None or not path.exists():
        return False
    return parts_of(json.loads(path.read_text())) == parts_of(ours)


def parts_of(manifest: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the partitions of an artifact are, in order, without how long they take."""
    return [
        (
            part["toolchain"],
            part["config"],
            part["nodes"],
            part.get("takes") or {},
            part.get("gives") or {},
        )
        for part in manifest["placement"]["partitions"]
    ]


def timed(about: PeerTime, samples: Samples, clock: str) -> PeerTime:
    """A runtime with its figures."""
    figures = column(samples, clock)
    low, high = spread(figures)
    return msgspec.structs.replace(
        about,
        us=middle(figures),
        low_us=low,
        high_us=high,
        wall_us=middle(column(samples, "wall")),
        cpu_us=middle(column(samples, "cpu")),
        rounds=sum(pair[0] >= 0 for pair in samples),
    )


def judged(entry: PeerEntry) -> PeerEntry:
    """The entry with ours against the best other, and against the best float32 one."""
    best = best_other(entry.peers, entry.samples, entry.clock, SAME[entry.precision])
    ratio = against(entry.samples, best, entry.clock, entry.launches)
    if ratio is not None:
        entry = msgspec.structs.replace(
            entry,
            best_other=best,
            slowdown=ratio.middle - 1,
            slowdown_low=ratio.low - 1,
            slowdown_high=ratio.high - 1,
        )
    if entry.precision != FLOAT32:
        plain = best_other(entry.peers, entry.samples, entry.clock, (FLOAT32,))
        if plain is not None:
            gain = paired_ratio(
                column(entry.samples[plain], entry.clock),
                column(entry.samples[OURS], entry.clock),
                entry.launches,
            )
            if gain is not None:
                entry = msgspec.structs.replace(
                    entry,
                    best_float32=plain,
                    speedup=gain.middle,
                    speedup_low=gain.low,
                    speedup_high=gain.high,
                )
    return entry


def placed(document: dict[str, Any]) -> dict[str, Any]:
    """What placing said of the placement."""
    placement = document["placement"]
    used: dict[str, int] = {}
    for part in placement["partitions"]:
        config = ",".join(f"{k}={v}" for k, v in sorted(part["config"].items()))
        name = part["toolchain"] + (f"[{config}]" if config else "")
        used[name] = used.get(name, 0) + 1
    return {
        "estimated_us": placement["estimated_us"],
        "placed_us": placement["measured_us"],
        "toolchains": used,
    }


def versions() -> dict[str, str]:
    """Of what takes part, as installed here."""
    found = {}
    for package in (
        "collage-explorer",
        "apache-tvm",
        "onnxruntime",
        "openvino",
        "onednn-cpu-gomp",
        "scipy-openblas32",
        "mkl",
    ):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


SETTINGS = (
    "every runtime has the same thread count and a process of its own, and sleeps while another "
    "runs; rounds are interleaved in changing order, a round is the median of its calls; for each "
    "launch of some rounds all processes are started anew",
    "onnxruntime: its Python session with all optimisations, inputs and outputs bound once; "
    "openvino: compiled model, precision hint float32 (bf16 where said), tensors set once; "
    "torch: torch.compile, max-autotune, freezing; ncnn and MNN: what pnnx and mnnconvert make, in "
    "float32; NAME alone: the whole model as one partition of that toolchain, in our artifact",
    "ours: the artifact of `collage place --threads N`, run by the loader it ships",
)


def save(path: Path, result: PeersResult) -> None:
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    beside.replace(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--launches", type=int, default=5, help="processes a runtime has, each for its rounds"
    )
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a round")
    parser.add_argument("--warm", type=float, default=0.02, help="warm-up of a round, in seconds")
    parser.add_argument(
        "--rest",
        type=float,
        default=0.08,
        help="between rounds, in seconds: threads of some runtimes spin for 0.06 after a call",
    )
    parser.add_argument("--precision", default=FLOAT32, choices=("float32", "bf16", "int8"))
    parser.add_argument("--tolerance", type=float, help="given to place, with --precision")
    parser.add_argument(
        "--clock",
        default="auto",
        choices=("auto", "wall", "cpu"),
        help="auto: CPU time at one thread on a busy machine, else the wall clock",
    )
    parser.add_argument("--budget", default="10m", help="place's time for measuring")
    parser.add_argument("--tune-budget", default="0s", help="place's time for tuning TVM")
    parser.add_argument("--peers", help="only these runtimes: onnxruntime,openvino,ncnn,tvm,…")
    parser.add_argument("--no-alone", action="store_true", help="without the toolchains alone")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="RUNTIME=INTERPRETER",
        help="one that has the runtime and numpy (torch: onnx2torch, ncnn: pnnx); may be repeated",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        help="measurements, models and artifacts (default: a folder that goes)",
    )
    parser.add_argument("--reuse", action="store_true", help="do not place again what is in cache")
    parser.add_argument("--again", action="store_true", help="measure also what --out holds")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print this file's table")
    options = parser.parse_args()
    if not 1 <= options.launches <= options.rounds:
        parser.error("--launches: at least 1, and no more than --rounds")
    return options


def main() -> None:
    options = arguments()
    if options.table:
        print(markdown(read_peers(options.table)))
        return
    models = options.models or (list(FLOAT_TWIN) if options.precision == "int8" else ELEVEN)
    here = device()
    result = read_peers(options.out) if options.out.exists() else PeersResult()
    result = msgspec.structs.replace(
        result,
        machine=here.description,
        cores=physical_cores(),
        versions=versions(),
        settings=SETTINGS,
    )
    print("\n".join(headings(result)))
    print(f"load average {os.getloadavg()[0]:.2f}, {options.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        keep = (options.cache or Path(scratch)).resolve() / "peers"
        keep.mkdir(parents=True, exist_ok=True)
        os.environ["COLLAGE_CACHE_DIR"] = str(keep.parent)
        for threads in map(int, options.threads.split(",")):
            for name in models:
                key = (name, threads, options.precision)
                known = any(e.key == key and e.slowdown is not None for e in result.entries)
                if known and not options.again:
                    print(f"{name}, {threads} thr: in {options.out} already", flush=True)
                    continue
                try:
                    entry = measure(name, threads, keep, options)
                except PeerFailed as failure:
                    print(f"{name}, {threads} thr: {failure}", flush=True)
                    continue
                kept = tuple(e for e in result.entries if e.key != key)
                result = msgspec.structs.replace(result, entries=(*kept, entry))
                save(options.out, result)
                print(one_line(entry), flush=True)
    print("\n" + markdown(result))


if __name__ == "__main__":
    main()
