"""Precompiles kernel libraries that several candidates share.

A candidate's compilation has a limit of its own; a library of kernels that many of them call must
not count against the first one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.records.candidate import Candidate, CostTable
from collage_engine.records.graph import NodeSet
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.capabilities import PrecompilesShared
from collage_engine.toolchains.registry import get


def make_ready(
    open_model: OpenModel,
    menu: Menu,
    candidates: Sequence[Candidate],
    costs: CostTable,
    now: Callable[[str], None],
    control: RunControl,
) -> None:
    """Have the toolchains compile what their unmeasured candidates share.

    What cannot be compiled is reported as a warning; its candidates are refused when their turn
    comes.

    Args:
        open_model: The model.
        menu: The toolchain instances.
        candidates: The candidates of the run.
        costs: What is known of their costs.
        now: Takes a few words on what is compiled.
        control: The run's cancel flag, and what takes warnings.

    Raises:
        Cancelled: The user stopped it.
    """
    graph = open_model.model.graph
    wanted: dict[ToolchainInstance, list[NodeSet]] = defaultdict(list)
    for candidate in candidates:
        if not costs.known(candidate.id):
            wanted[candidate.instance].append(graph.to_indices(candidate.nodes))
    for source in menu.sources:
        toolchain = get(source.instance.toolchain)
        if not isinstance(toolchain, PrecompilesShared):
            continue
        sets = wanted.get(source.instance, [])
        try:
            toolchain.precompile(graph, source.instance, sets, now, control.cancelled.is_set)
        except ToolchainError as error:
            control.warn(f"{source.instance.id}: {error}")
        control.check()
