"""What the farm itself costs: overhead of a task, and how busy it keeps many machines.

``python -m tests.benchmarks.bench_farm overhead`` times tasks that do nothing on one machine over
TLS. ``... simulated`` starts 200 machines in eight processes, whose tasks sleep, and places 100
models' worth of groups on them; it prints the share of the time that the machines were busy, and
what the coordinator's process holds. ``... two MODEL.onnx 40`` counts the groups of a model that
one member and two members on processors of their own measure in 40 s. ``... winners MODEL.onnx 20
15s`` places a model so often with an empty store, on this machine and on a farm of one member, and
counts how often both have the same winner or say that the times of the two cannot be told apart.
``... killed 20`` kills the worker of a task so often, and times when the task goes elsewhere.
All run on this machine alone, end in a known time, and print a row of a table.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from collage_engine.farm.carrier import LOOPBACK_HTTP, Address, apply_settings, connect
from collage_engine.farm.certificates import certificate_path, own_certificate, security
from collage_engine.farm.coordinator import Coordinator, Task
from collage_engine.farm.farms import Connection
from collage_engine.farm.identity import engine_hash, library_versions
from collage_engine.farm.member import Context, Member
from collage_engine.farm.messages import GroupRequest, Hello, encode
from collage_engine.farm.model_files import model_files
from collage_engine.farm.worker_process import end_with_parent
from collage_engine.records.files import write_atomically
from collage_engine.records.settings import RunSettings
from collage_engine.timing.measurer import CandidateGroup, group_candidates
from tests.support.farm_cluster import ROOT, FarmProcesses

MACHINES, MODELS, GROUPS = 200, 100, 24
"""Machines, models, and groups of each model of the simulated farm; the first two are those of the
product's requirement."""
SHORTEST_S, LONGEST_S = 1.0, 20.0
"""Seconds that a simulated group takes, each length as likely as another; as those of real models.

Scheduler, coordinator and machines share the processors of one machine, which on a real farm each
have their own: groups of 4 s on 200 machines are more than two processors can pass on."""
MACHINES_A_PROCESS = 25
"""Simulated machines in one process; chosen: a machine takes 1 MB in it, and a process 90 MB."""
START_S = 600.0
"""Seconds after which a simulated farm must be complete; chosen for a machine that others use."""
RUNS_S = 1.0
"""Seconds that a task runs before its worker is killed; chosen: it has begun by then."""
MOST_GROUPS_A_SECOND = 50.0
"""Groups that are queued for each second of measuring; chosen: far more than machines measure."""
LONGEST_SHARE = 3.0
"""Multiple of the time that the groups take if all machines are always busy, after which the
simulation is ended; chosen."""


def options_of_dask() -> dict[str, Any]:
    """What schedulers and machines of a simulated farm are started with."""
    path, _ = own_certificate()
    return {
        "security": security(path),
        "dashboard_address": LOOPBACK_HTTP,
        "dashboard": False,
    }


def scheduler(ready: Path) -> None:
    """Be the scheduler of a simulated farm, until this process is ended."""
    from distributed import Scheduler

    end_with_parent()
    apply_settings()

    async def work() -> None:
        started = await Scheduler(host="tls://127.0.0.1", port=0, **options_of_dask())
        write_atomically(ready, started.address)
        await started.finished()

    asyncio.run(work())


def simulated_hello(self: Member, context: Context, message: bytes, chunk: bytes) -> Hello:
    """Say what a simulated machine is: nothing is probed, and all are alike."""
    return Hello(
        name=platform.node(),
        host=platform.node(),
        engine=engine_hash(),
        libraries=library_versions(),
        processor="simulated",
        cores=1,
        fingerprint="simulated",
    )


def machines(address: str, first: int, count: int) -> None:
    """Be so many machines, until this process is ended."""
    import dask.config
    from distributed import Worker

    end_with_parent()
    apply_settings()
    # Many machines begin at once on the processors of one.
    dask.config.set({"distributed.comm.timeouts.connect": f"{START_S}s"})
    # Each of Dask's workers would count all connections of the process that they share.
    psutil.Process.num_fds = lambda self: 0  # type: ignore[method-assign]
    Member._hello = simulated_hello  # type: ignore[method-assign]

    async def work() -> None:
        workers = [
            Worker(address, name=f"m{number:03d}", nthreads=1, memory_limit=0, **options_of_dask())
            for number in range(first, first + count)
        ]
        for worker in workers:
            await worker
        await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(work())


class Farm:
    """A simulated farm in other processes, and a connection to it."""

    def __init__(self, count: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="collage-bench-")
        os.environ["COLLAGE_BUILD_DIR"] = os.environ.get(
            "COLLAGE_BUILD_DIR", str(Path.home() / ".cache" / "collage" / "native")
        )
        os.environ["COLLAGE_CACHE_DIR"] = self.folder.name
        own_certificate()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connection: Connection | None = None
        try:
            ready = Path(self.folder.name) / "address"
            self.start("scheduler", str(ready))
            self.wait(ready.exists, lambda: "the scheduler does not start")
            address = ready.read_text()
            for first in range(0, count, MACHINES_A_PROCESS):
                here = min(MACHINES_A_PROCESS, count - first)
                self.start("machines", address, str(first), str(here))
            carrier = connect(Address(address, certificate_path()))
            self.connection = Connection(address, carrier)
            self.coordinator: Coordinator = self.connection.coordinator
            self.wait(lambda: self.states()["idle"] >= count, lambda: f"{self.states()}")
        except BaseException:
            self.close()
            raise

    def start(self, *words: str) -> None:
        """Start a process of the farm."""
        command = [sys.executable, "-m", "tests.benchmarks.bench_farm", *words]
        # Each is a session of its own, as on a machine of its own; it ends with this process.
        self.processes.append(subprocess.Popen(command, start_new_session=True))

    def wait(self, over: Callable[[], bool], state: Callable[[], str]) -> None:
        """Wait for the farm to get on; SystemExit says in what state it is after ``START_S``."""
        ends = time.monotonic() + START_S
        while not over():
            if time.monotonic() > ends:
                raise SystemExit(f"the farm is not complete after {START_S:g} s: {state()}")
            ended = [process.poll() for process in self.processes]
            if any(status is not None for status in ended):
                raise SystemExit(f"a process of the farm has ended: {ended}")
            time.sleep(0.1)

    def states(self) -> Counter[str]:
        """How many machines are in each state."""
        return Counter(machine.state for machine in self.coordinator.status().machines)

    def cpu_s(self) -> list[float]:
        """CPU time of the coordinator, of the scheduler, and of all machines."""
        used = [sum(psutil.Process(p.pid).cpu_times()[:2]) for p in self.processes]
        return [sum(psutil.Process().cpu_times()[:2]), used[0], sum(used[1:])]

    def close(self) -> None:
        """End the farm."""
        if self.connection is not None:
            self.connection.close()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.folder.cleanup()


def one_task(farm: Farm) -> None:
    """Have a machine do nothing, and wait for its answer."""
    over = threading.Event()
    farm.coordinator.submit(Task(name="sleep", message=b"0", done=lambda body, name: over.set()))
    over.wait()


def overhead(count: int) -> None:
    """Time tasks that do nothing, one after the other on one machine, from queue to answer."""
    farm = Farm(1)
    try:
        times = []
        for number in range(count + 10):
            began = time.perf_counter()
            one_task(farm)
            if number >= 10:
                times.append((time.perf_counter() - began) * 1e3)
        times.sort()
        print(
            f"overhead of a task over TLS: median {statistics.median(times):.1f} ms, "
            f"90th percentile {times[int(0.9 * count)]:.1f} ms, {count} tasks"
        )
    finally:
        farm.close()


def simulated(count: int, models: int, groups: int) -> None:
    """Keep many machines busy with the groups of many models."""
    began = time.perf_counter()
    farm = Farm(count)
    joined_s = time.perf_counter() - began
    draw = random.Random(1)
    try:
        over = threading.Event()
        answers: list[str] = []
        """The machine of each answer."""
        failures: list[str] = []
        begins: list[tuple[float, float]] = []
        """When each group was given to a machine, from the begin on, and what it takes."""
        used = farm.cpu_s()
        began = time.perf_counter()

        def done(body: object, machine: str) -> None:
            answers.append(machine)
            if not isinstance(body, bytes):
                failures.append(f"{machine}: {body}")
            if len(answers) == models * groups:
                over.set()

        def noting(takes: float) -> Callable[[str, str], None]:
            return lambda name, address: begins.append((time.perf_counter() - began, takes))

        seconds = 0.0
        for _ in range(groups):
            for model in range(models):
                takes = draw.uniform(SHORTEST_S, LONGEST_S)
                seconds += takes
                farm.coordinator.submit(
                    Task(
                        name="sleep",
                        message=repr(takes).encode(),
                        done=done,
                        owner=f"model{model}",
                        began=noting(takes),
                    )
                )
        process, most = psutil.Process(), 0
        longest_s = LONGEST_SHARE * seconds / count + LONGEST_S
        while not over.wait(0.5):
            most = max(most, process.memory_info().rss)
            if time.perf_counter() - began > longest_s:
                raise SystemExit(
                    f"{len(answers)} of {models * groups} groups were answered within "
                    f"{longest_s:.0f} s; machines: {farm.states()}"
                )
        ended = time.perf_counter()
        drained = max(at for at, _ in begins)
        whole = seconds / (count * (ended - began))
        # After the last group was given out, a finite queue leaves machines idle in any case.
        steady = sum(min(takes, drained - at) for at, takes in begins) / (count * drained)
        by_machine = Counter(answers)
        cpu = [
            (late - early) / (models * groups) * 1e3
            for early, late in zip(used, farm.cpu_s(), strict=True)
        ]
        row = [
            f"{count} simulated machines, {models} models, {models * groups} groups of "
            f"{SHORTEST_S:g} to {LONGEST_S:g} s",
            f"busy {steady:.1%} of the time from when all had joined until the last group began "
            f"({drained:.0f} s), {whole:.1%} until the last answer ({ended - began:.0f} s); "
            f"coordinator {most / 1e6:.0f} MB; each machine did {min(by_machine.values())} to "
            f"{max(by_machine.values())} groups; a group took {cpu[0]:.1f} ms of CPU time in the "
            f"coordinator, {cpu[1]:.1f} in the scheduler and {cpu[2]:.1f} in the machine; all had "
            f"joined after {joined_s:.0f} s; machines at the end: {dict(farm.states())}; "
            f"{len(failures)} failures {failures[:3] or ''}",
        ]
        print(f"| {' | '.join(row)} |")
    finally:
        farm.close()


def two(path: str, seconds: float) -> None:
    """Count the groups of a model that one machine measures, and that two do, in equal times.

    The machines are two members on this machine, each on a processor of its own. All groups of the
    model are asked for again and again in the same order. Both machines open the model before the
    time begins. It takes three times as long as is asked for, and what members and model take to
    start.
    """
    from collage_engine.candidates.open_model import OpenModel

    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        processes = FarmProcesses(Path(folder), ["one", "two"])
        os.environ["COLLAGE_CACHE_DIR"] = str(processes.cache)
        connection: Connection | None = None
        try:
            connection = Connection(processes.address)
            coordinator = connection.coordinator
            opened = OpenModel(path, {})
            settings = RunSettings(threads=1, toolchains=("tvm", "onednn"))
            menu = opened.menu(settings)
            model, contents = model_files(path, {})
            groups = group_candidates(menu.candidates)
            random.Random(1).shuffle(groups)
            enough = list(
                itertools.islice(itertools.cycle(groups), int(MOST_GROUPS_A_SECOND * seconds))
            )
            failures: list[str] = []

            def until(over: Callable[[], bool]) -> None:
                ends = time.monotonic() + START_S
                while not over():
                    if time.monotonic() > ends:
                        raise SystemExit(
                            f"the machines are not ready after {START_S:g} s: "
                            f"{coordinator.status().machines}; {failures[:3]}"
                        )
                    time.sleep(0.05)

            def measure(owner: str, machine: str, share: list[CandidateGroup]) -> Counter[str]:
                """Queue groups, and count those that are answered, by machine."""
                done: Counter[str] = Counter()

                def count(body: object, name: str) -> None:
                    if isinstance(body, bytes):
                        done[name] += 1
                    else:
                        failures.append(f"{name}: {body}")

                for group in share:
                    request = GroupRequest(
                        model=model,
                        settings=settings,
                        fingerprint=menu.keys.fingerprint,
                        candidates=group.candidates,
                        toolchains=settings.toolchains,
                    )
                    coordinator.submit(
                        Task(
                            name="group",
                            message=encode(request),
                            done=count,
                            owner=owner,
                            machine=machine,
                            files=contents,
                        )
                    )
                return done

            def idle() -> bool:
                return sum(m.state == "idle" for m in coordinator.status().machines) == 2

            until(idle)
            warm = [measure("warm", name, groups[:2]) for name in ("one", "two")]
            until(lambda: all(sum(done.values()) == 2 for done in warm))
            failures.clear()
            found = []
            for owner, machine in (("both", ""), ("first", "one"), ("second", "two")):
                done = measure(owner, machine, enough)
                time.sleep(seconds)
                counted = dict(done)
                coordinator.withdraw(owner)
                found.append(counted)
                time.sleep(1)
                until(idle)  # what was in flight has ended
            both, one, other = (sum(done.values()) for done in found)
            if not one + other:
                raise SystemExit(f"no group was measured in {seconds:g} s: {failures[:3]}")
            row = [
                f"two machines against one, {Path(path).name}, {seconds:g} s each",
                f"{both} groups on two machines, {one} on the first and {other} on the second "
                f"alone: {2 * both / (one + other):.2f} times as many; {len(failures)} failures "
                f"{failures[:1] or ''}".strip(),
            ]
            print(f"| {' | '.join(row)} |")
        finally:
            if connection is not None:
                connection.close()
            processes.close()


def killed(count: int) -> None:
    """Time how long it takes from the death of a worker until its task begins elsewhere."""
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        alone = len(os.sched_getaffinity(0)) < 2
        processes = FarmProcesses(Path(folder), ["one", "two"], shares=alone)
        os.environ["COLLAGE_CACHE_DIR"] = str(processes.cache)
        connection: Connection | None = None
        try:
            connection = Connection(processes.address)
            coordinator = connection.coordinator
            times = []
            for _ in range(count):
                ends = time.monotonic() + START_S
                while [m.state for m in coordinator.status().machines] != ["idle", "idle"]:
                    if time.monotonic() > ends:
                        raise SystemExit(f"not ready: {coordinator.status().machines}")
                    time.sleep(0.05)
                begins: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()

                def began(name: str, address: str, to: Any = begins) -> None:
                    to.put((name, time.monotonic()))

                coordinator.submit(
                    Task(
                        name="sleep",
                        message=b"60",
                        done=lambda body, name: None,
                        owner="killed",
                        began=began,
                    )
                )
                first, _ = begins.get(timeout=START_S)
                time.sleep(RUNS_S)
                worker = processes.worker(first)
                assert worker is not None
                at = time.monotonic()
                worker.kill()
                second, given = begins.get(timeout=START_S)
                assert second != first
                times.append(given - at)
                coordinator.withdraw("killed")
            row = [
                f"a worker that is killed, {count} times",
                f"its task was given to the other machine after a median of "
                f"{statistics.median(times):.3f} s, {max(times):.3f} s at most",
            ]
            print(f"| {' | '.join(row)} |")
        finally:
            if connection is not None:
                connection.close()
            processes.close()


def placed(path: str, budget: str, cache: Path, farm: FarmProcesses, on_farm: bool) -> Any:
    """The document of one placement with an empty store."""
    words = ["place", path, "-o", str(cache / "out"), "--budget", budget, "--threads", "1"]
    words += ["--toolchains", "tvm,onednn", "--json"]
    words += ["--farm", farm.address] if on_farm else []
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", *words],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
        timeout=START_S,
        env=farm.environment
        | {
            "COLLAGE_CACHE_DIR": str(cache),
            "COLLAGE_FARM_CERTIFICATE": str(farm.cache / "farm" / "certificate.pem"),
        },
    )
    return json.loads(done.stdout)


def winners(path: str, count: int, budget: str) -> None:
    """Compare the winners of local runs with those of runs on a farm."""

    def partitions(run: Any) -> list[Any]:
        placement = run["placement"] or {"partitions": []}
        return sorted((part["toolchain"], part["nodes"]) for part in placement["partitions"])

    same = ties = covers = 0
    differing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        farm = FarmProcesses(Path(folder), ["one"])
        try:
            for number in range(count):
                here, there = (
                    placed(path, budget, Path(folder) / f"{number}{name}", farm, name == "farm")
                    for name in ("here", "farm")
                )
                first, second = here["winner"], there["winner"]
                tied = first in there["tied"] or second in here["tied"]
                same += first == second
                ties += first != second and tied
                covers += partitions(here) == partitions(there)
                if first != second and not tied:
                    differing.append(f"{first} and {second}")
                print(f"{number}: {first} here, {second} on the farm, tied: {tied}", flush=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise SystemExit(f"a placement failed: {error}") from error
        finally:
            farm.close()
    row = [
        f"the same winner as a local run, {Path(path).name}, {budget}",
        f"{same + ties} of {count}: {same} the same winner, {ties} declared ties"
        f"{'; apart: ' if differing else ''}{', '.join(differing)}; {covers} the same cover",
    ]
    print(f"| {' | '.join(row)} |")


def main() -> None:
    """Run one of the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what",
        choices=("overhead", "simulated", "two", "winners", "killed", "scheduler", "machines"),
    )
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.what == "scheduler":
        scheduler(Path(options.arguments[0]))
    elif options.what == "machines":
        address, first, count = options.arguments
        machines(address, int(first), int(count))
    elif options.what == "two":
        two(options.arguments[0], float(options.arguments[1]))
    elif options.what == "winners":
        winners(options.arguments[0], int(options.arguments[1]), options.arguments[2])
    elif options.what == "killed":
        killed(int(options.arguments[0]) if options.arguments else 20)
    elif options.what == "overhead":
        overhead(int(options.arguments[0]) if options.arguments else 200)
    else:
        numbers = list(map(int, options.arguments)) or [MACHINES, MODELS, GROUPS]
        simulated(*numbers)


if __name__ == "__main__":
    main()
