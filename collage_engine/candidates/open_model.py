"""One open model in the pipeline's child: the import, the menu of toolchains, the candidates."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collage_engine.bounds.certified import bounded
from collage_engine.candidates.host_offers import host_offers
from collage_engine.candidates.precision import check_precision
from collage_engine.machine.cuda import TargetChoice, choose_target
from collage_engine.machine.device import device, fingerprint, physical_cores
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.partition.enumerate import Offer, enumerate_candidates, why_not
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import ToolchainError, UsageError
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target, ToolchainInstance, ToolchainState
from collage_engine.store.keys import KeyContext, KeyMaker
from collage_engine.store.store import Store
from collage_engine.toolchains.base import Toolchain
from collage_engine.toolchains.capabilities import (
    CallsLibraries,
    LibraryForKernels,
    LowersToTir,
    border_formats,
    composites_of,
)
from collage_engine.toolchains.registry import ON_DEMAND, get, known_names, probe_all
from collage_engine.toolchains.sources import source_hash


@dataclass
class Menu:
    """What can be chosen from, for one set of settings."""

    states: list[ToolchainState]
    """Of every known toolchain, present or not."""
    offers: list[Offer]
    records: list[CandidateRecord]
    """With keys, and the costs that were stored."""
    not_offered: dict[str, dict[int, str]]
    keys: KeyContext
    target: TargetChoice = field(default_factory=lambda: TargetChoice("cpu"))

    @property
    def unmeasurable(self) -> str | None:
        """Why nothing can be timed here; None when the target's device is there."""
        if self.target.kind == "cpu" or self.target.device is not None:
            return None
        return self.target.reason

    @property
    def device_text(self) -> str:
        """What the measuring is of, as a person reads it."""
        if self.target.device is not None:
            return self.target.device.record().description
        return device().description

    @property
    def target_text(self) -> str:
        """``cpu``, or ``cuda:sm_90a``."""
        return ":".join(filter(None, (self.target.kind, self.target.architecture)))

    @property
    def instances(self) -> dict[str, ToolchainInstance]:
        return {offer.instance.id: offer.instance for offer in self.offers}

    def offer(self, instance: str) -> Offer:
        return next(offer for offer in self.offers if offer.instance.id == instance)


class Workspace:
    """An imported model and what was found out about it in this process."""

    def __init__(self, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self.path = path
        self.shapes = dict(shapes)
        began = time.perf_counter()
        self.model: ImportedModel = import_model(path, self.shapes)
        self.import_s = time.perf_counter() - began
        self.store = Store()
        self.folder = Path(tempfile.mkdtemp(prefix="collage-"))
        """Recorded activations and built modules, as large as the model each: of one job."""
        self._stamp = self._file_stamp()
        self._menus: dict[tuple[tuple[str, ...], int, str, str, tuple[int, ...]], Menu] = {}

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def empty(self) -> None:
        """Remove what a job left in the folder."""
        with contextlib.suppress(OSError):
            for left in self.folder.iterdir():
                shutil.rmtree(left, ignore_errors=True)

    def is_current(self) -> bool:
        """Whether the file is still the one that was imported."""
        return self._file_stamp() == self._stamp

    def _file_stamp(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns

    def menu(self, settings: RunSettings, on_host: tuple[int, ...] = ()) -> Menu:
        """Offers and candidates for these settings, with stored costs as of now.

        ``on_host``: operators that are offered on the host too, in a run on a device.
        Raises UsageError for an unknown target, ToolchainError when no chosen toolchain is here.
        """
        target = choose_target(settings.target)
        check_precision(self.model, settings.precision, settings.target)
        threads = threads_of(settings)
        key = (settings.toolchains, threads, settings.precision, settings.target, on_host)
        menu = self._menus.get(key)
        if menu is None:
            menu = self._make_menu(settings, threads, target, on_host)
            self._menus[key] = menu
        menu.records = self.with_stored_costs(menu.records)
        return menu

    def _make_menu(
        self, settings: RunSettings, threads: int, target: TargetChoice, on_host: tuple[int, ...]
    ) -> Menu:
        named = [name for name in settings.toolchains if name in ON_DEMAND]
        states = [*probe_all(), *probe_all(named)]
        by_name = {state.name: state for state in states}
        chosen = settings.toolchains or tuple(s.name for s in states if s.serves(target.kind))
        offers: list[Offer] = []
        hosts: list[Toolchain] = []
        anything = any(s.serves(target.kind) for s in states if s.name in chosen)
        for name in chosen:
            state = by_name.get(name)
            if state is None:
                raise UsageError(
                    f"there is no toolchain {name!r}; known are {', '.join(known_names())}"
                )
            if target.kind != "cpu" and state.available and state.serves("cpu") and anything:
                hosts.append(get(name))
                if not state.serves(target.kind):
                    continue
            if not state.serves(target.kind):
                raise UsageError(f"toolchain {name} does not compile for {target.kind}")
            # Without its device a toolchain still compiles, if it can and the user asks for it.
            wanted = bool(settings.toolchains) and target.device is None and target.kind != "cpu"
            if state.available or (wanted and state.builds):
                toolchain = get(name)
                offers += [
                    self._offer(toolchain, instance)
                    for instance in _instances(toolchain, settings, threads, target)
                ]
            elif settings.toolchains:
                raise ToolchainError(
                    f"toolchain {name} is not available here: {state.reason}"
                    + (f" ({state.install})" if state.install else "")
                )
        if target.kind == "cpu":
            offers += [self._offer(*each) for each in _with_libraries(offers, threads)]
        offers += host_offers(self.model.graph, hosts, threads, offers, on_host, self._offer)
        if not offers:
            reasons = "; ".join(f"{state.name}: {state.reason}" for state in states)
            raise ToolchainError(f"no toolchain is available on this machine ({reasons})")
        graph = self.model.graph
        found = enumerate_candidates(graph, offers)
        context = self._key_context(states, target)
        makers = KeyMaker(graph, self.model.constant)
        records = [
            msgspec.structs.replace(
                record, key=context.key(makers.form_of(record), record.instance)
            )
            for record in found.candidates
        ]
        # What stays unmeasured then has at least a certified bound on its regret.
        direct = {
            o.instance.toolchain
            for o in offers
            if get(o.instance.toolchain).about.direct_convolutions
        }
        records = bounded(graph, records, self.store, target.device, direct)
        return Menu(
            states=states,
            offers=offers,
            records=records,
            not_offered=self._not_offered(offers, records),
            keys=context,
            target=target,
        )

    def _offer(self, toolchain: Toolchain, instance: ToolchainInstance) -> Offer:
        graph = self.model.graph
        return Offer(
            instance=instance,
            spec=toolchain.partition_spec(instance, graph),
            supports=lambda index: toolchain.supports(graph, index, instance),
            whole_model=toolchain.about.whole_model and not instance.library,
            lowers_to_tir=isinstance(toolchain, LowersToTir),
            made_of=lambda nodes: composites_of(toolchain, graph, instance, nodes),
            formats=border_formats(toolchain, instance),
            device=instance.device,
        )

    def _not_offered(
        self, offers: Sequence[Offer], records: Sequence[CandidateRecord]
    ) -> dict[str, dict[int, str]]:
        """Per instance, the operators it has no candidate for, with the reason."""
        graph = self.model.graph
        held: dict[str, set[int]] = {offer.instance.id: set() for offer in offers}
        for record in records:
            held[record.instance.id].update(record.nodes)
        return {
            offer.instance.id: {
                number: why_not(graph, offer, index)
                for number, index in enumerate(graph.operators)
                if number not in held[offer.instance.id]
            }
            for offer in offers
        }

    def _key_context(self, states: Sequence[ToolchainState], target: TargetChoice) -> KeyContext:
        import tvm

        from collage_engine.lowering.target import build_target

        present = [state for state in states if state.available]
        return KeyContext(
            tvm_version=tvm.__version__,
            target=str(build_target(target.architecture)),
            fingerprint=target.device.record().fingerprint if target.device else fingerprint(),
            host=fingerprint() if target.device else "",
            versions={state.name: state.version or "" for state in present},
            sources={state.name: source_hash(type(get(state.name))) for state in present},
        )

    def with_stored_costs(self, records: Sequence[CandidateRecord]) -> list[CandidateRecord]:
        """The records with the costs the store holds for their keys."""
        stored = self.store.get_many(
            {record.key for record in records if record.key}, self.model.record.sha256
        )
        return [
            msgspec.structs.replace(record, cost=stored[record.key])
            if record.key in stored
            else record
            for record in records
        ]


def _instances(
    toolchain: Toolchain, settings: RunSettings, threads: int, target: TargetChoice
) -> tuple[ToolchainInstance, ...]:
    if target.kind == "cuda":
        return toolchain.instances(Target.cuda(target.architecture), settings.precision)
    return toolchain.instances(Target.cpu(threads), settings.precision)


def _with_libraries(
    offers: Sequence[Offer], threads: int
) -> list[tuple[Toolchain, ToolchainInstance]]:
    """Instances of the chosen toolchains whose kernels call others of them as libraries."""
    chosen = [get(name) for name in dict.fromkeys(o.instance.toolchain for o in offers)]
    libraries = [toolchain.name for toolchain in chosen if isinstance(toolchain, LibraryForKernels)]
    return [
        (toolchain, instance)
        for toolchain in chosen
        if isinstance(toolchain, CallsLibraries)
        for instance in toolchain.library_instances(threads, libraries)
    ]


def threads_of(settings: RunSettings) -> int:
    """The run's threads: as asked, or the physical cores."""
    return settings.threads or physical_cores()
