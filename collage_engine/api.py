"""Offers Collage Explorer to Python programs.

It offers what the command line offers. ``place`` and ``load`` are the two calls that most programs
need; a ``Session`` is for pinning, running again and comparing. Importing it loads no toolchain:
models are read, and candidates measured, in child processes. What it returns are the plain, frozen
records of ``collage_engine.records``; times are microseconds (``_us``). Everything that goes wrong
raises a ``CollageError`` whose text is one sentence: what, where, and what to do.

Example:
    >>> import collage_engine as collage
    >>> placed = collage.place("model.onnx", threads=1, budget="2m")
    >>> print(placed.latency_us, placed.explain("conv1"))
    >>> placed.export("artifact")
    >>> with collage.open_model("model.onnx") as session:
    ...     session.pin("conv1*=onednn")
    ...     run = session.place(collage.RunSettings(budget_s=60), out="artifact")
    ...     session.save("model.collage")
    >>> collage.run_artifact("artifact", benchmark=True)["median_us"]
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from collage_engine.records import protocol as p
from collage_engine.records.answers import Comparison, ExplainAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.event import Event
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Baseline, Partition, Run
from collage_engine.records.precision import LONG, Precision
from collage_engine.records.settings import ReportFormat, RunSettings
from collage_engine.records.shapes import ShapeChoice, combined
from collage_engine.service import answers
from collage_engine.service.engine import Engine, interruptible
from collage_engine.service.input_archive import input_archive
from collage_engine.store.document import Document
from collage_engine.store.pins import close_names
from collage_engine.support.errors import ArtifactError, CollageError, UsageError
from collage_engine.support.files import check_writable
from collage_engine.support.text import counted
from collage_engine.support.time_limits import parse_duration
from collage_engine.support.typed import convert
from collage_engine.wording.layers import compare_runs

if TYPE_CHECKING:
    import networkx as nx
    import onnx

    from collage_engine.drawing.progress import ProgressReport
    from collage_engine.farm.several_runs import ShapesPlaced
    from collage_engine.machine.loader.run_artifact import Model, Pool, Shapes

__all__ = [
    "CollageError",
    "PlacedModel",
    "RunSettings",
    "Session",
    "ShapeChoice",
    "combined",
    "load",
    "load_session",
    "open_model",
    "place",
    "place_shapes",
    "run_artifact",
]

Listener = Callable[[Event], None]
"""Takes the events of a run (``records.event``); it is called from the thread that works."""
Sizes = dict[str, tuple[int, ...]]
"""Shapes of inputs by name, in elements."""
Inputs = str | Path | Mapping[str, Any]
"""A file or folder of inputs, or arrays by input name."""


def place(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    budget: str | float = "10m",
    inputs: Inputs | Sequence[Inputs] = (),
    shapes: Sizes | None = None,
    keep_inputs: Sequence[str] = (),
    precision: str = "float32",
    pins: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> PlacedModel:
    """Find out which toolchain should run which part of a model, as ``collage place`` does.

    It returns once that is done. Ctrl-C, or a notebook's *interrupt*, ends it early with the best
    placement so far; a second one cancels it.

    Args:
        model: The ``.onnx`` file; or its bytes, or an ``onnx.ModelProto``, with all weights inside.
        budget: Time of the whole call, such as ``"90s"`` or ``"10m"``, or in seconds.
        inputs: Representative inputs instead of random ones: files and folders as for
            ``collage place --inputs``, or dictionaries of arrays by input name. Each is a sample;
            outputs are checked on all of them, and times are those of the first.
        shapes: Sizes of the inputs whose shapes the model leaves open.
        keep_inputs: Inputs that stay inputs although the file holds values for them.
        precision: The lowest that may be computed in: ``"float32"``, ``"bf16"``, ``"int8"`` …
        pins: Pins, written as for ``collage place --pin``.
        out: Folder to export the winner to; ``PlacedModel.export`` does so later.
        progress: Whether stages and warnings are shown on standard error.
        settings: Further fields of ``RunSettings``, such as ``threads``, ``toolchains``,
            ``tolerance`` or ``objective``; there they are explained.

    Raises:
        UsageError: An argument has a value that it cannot have.
        ModelError: The file cannot be read, or holds something that cannot be imported.
        InfeasibleError: Pins and limits leave no placement.
        Cancelled: It was cancelled; what was measured is kept.
    """
    began = time.monotonic()
    given = [inputs] if isinstance(inputs, (str, Path, Mapping)) else inputs
    chosen = RunSettings(
        budget_s=parse_duration(budget) if isinstance(budget, str) else budget,
        inputs_npz=input_archive(given),
        shapes=dict.fromkeys(_typed("keep_inputs", keep_inputs, tuple[str, ...]), ())
        | _typed("shapes", shapes or {}, Sizes),
        precision=_typed("precision", LONG.get(precision, precision), Precision),
        **settings,
    )
    pins = _typed("pins", pins, tuple[str, ...])
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_progress_report()) if progress else None
        engine = Engine(listener)
        try:
            stack.enter_context(interruptible(engine))
            session = Session.of_model(engine, model, chosen.shapes, chosen.inputs_npz)
            session.pin(*pins)
            chosen = msgspec.structs.replace(chosen, shapes=session.model.shapes)
            run = session.place(chosen, out=out, spent_s=time.monotonic() - began)
        except BaseException:
            engine.close()
            raise
    return PlacedModel(session, run)


def load(folder: str | Path, *, streams: int | None = None) -> Model | Shapes | Pool:
    """Load an exported artifact into this process, with the loader that artifacts carry.

    TVM reads the number of threads when it is first imported: an artifact that is loaded before
    decides for those that are loaded later.

    Args:
        folder: What ``place`` or ``export`` wrote. An artifact is code: load only those that you
            trust.
        streams: How many instances run at once, for calls from several threads; None: as many as
            the artifact was made for.

    Returns:
        A model with ``inputs`` and ``outputs``. It is called as ``model(x)``, ``model(name=x)`` or
        ``model({"name": x})``, which give the outputs by place and by name, or as sessions of
        ONNX Runtime are: ``model.run(None, {"name": x})``. Inputs that it has not are refused.

    Raises:
        ArtifactError: The folder is no artifact, or was changed.
    """
    from collage_engine.machine.loader import run_artifact as loader

    folder = _path(folder)
    try:
        return loader.load(folder, streams)
    except loader.Damaged as error:
        raise ArtifactError(f"{folder}: {error}") from error


def open_model(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    shapes: Sizes | None = None,
    listener: Listener | None = None,
) -> Session:
    """Read an ONNX model.

    Args:
        model: The ``.onnx`` file; or its bytes, or an ``onnx.ModelProto``, with all weights inside.
            A model in memory is kept in a file as long as the session is open: a session that is
            saved and loaded later can show it, but not measure it.
        shapes: Sizes of the inputs whose shapes the model leaves open. An input for which the file
            holds a value stays an input if it is among them; ``()`` means the value's sizes.
        listener: Takes the events of everything that is done with the session.

    Returns:
        A session without runs; close it, or use it in a ``with`` block.

    Raises:
        UsageError: There is no such file, or a shape is missing or does not fit.
        ModelError: The file cannot be read, or holds something that cannot be imported.
    """
    return _opened(listener, lambda engine: Session.of_model(engine, model, shapes))


def place_shapes(
    path: str | Path,
    choices: Sequence[ShapeChoice],
    settings: RunSettings | None = None,
    *,
    out: str | Path | None = None,
    others: bool = False,
    pins: Sequence[str] = (),
    listener: Listener | None = None,
) -> ShapesPlaced:
    """Place a model for several shapes, and write one artifact with an entry for each.

    Args:
        path: The ``.onnx`` file.
        choices: The shapes, such as ``combined({"batch": (1, 4, 16)}, {})``.
        settings: The options of all runs together; by default ten minutes on all toolchains.
        out: Folder of the artifact; none is written without it.
        others: Whether the artifact takes any other shape, too, by the model's own file.
        pins: Pins, written as for ``collage place --pin``.
        listener: Takes the events of all runs.

    Raises:
        UsageError: The model has no such dimension, or a value contradicts it.
        CollageError: A run failed; the sentence names its shape. No artifact is written.
    """
    from collage_engine.farm import several_runs

    pins = _typed("pins", pins, tuple[str, ...])
    with contextlib.closing(_engine(listener)) as engine:
        return several_runs.place_shapes(
            engine,
            _path(path),
            _typed("choices", choices, tuple[ShapeChoice, ...]),
            _settings(settings),
            out=None if out is None else _path(out),
            others=others,
            pins=pins,
        )


def load_session(path: str | Path, *, listener: Listener | None = None) -> Session:
    """Open a ``.collage`` file that ``Session.save`` or ``collage place --session`` wrote.

    Raises:
        SessionError: There is no such file, or it is no session.
    """
    return _opened(listener, lambda engine: Session.of_file(engine, _path(path)))


def _opened(listener: Listener | None, make: Callable[[Engine], Session]) -> Session:
    """Make a session on an engine of its own, which ends where that fails."""
    engine = _engine(listener)
    try:
        return make(engine)
    except BaseException:
        engine.close()
        raise


def run_artifact(folder: str | Path, *, benchmark: bool = False) -> dict[str, Any]:
    """Run an exported artifact in a process of its own and compare it with its sample.

    Args:
        folder: What ``place`` or ``export`` wrote. An artifact is code: run only those that you
            trust.
        benchmark: Time it too.

    Returns:
        What ``collage run --json`` prints: ``max_rel_error``, ``load_s`` and, with ``benchmark``,
        ``median_us`` and others (``ArtifactResult`` in ``artifact/artifact_run.py``).

    Raises:
        ArtifactError: The folder is no artifact, was changed, or differs from its sample.
    """
    from collage_engine.artifact.artifact_run import run_artifact as run_in_child

    return run_in_child(_path(folder), benchmark=benchmark)


class Session:
    """One model with everything that is known of it: candidates, costs, pins and runs.

    Made by ``open_model`` and ``load_session``. It may be used from several threads; one run is
    under way at a time.
    """

    def __init__(self, engine: Engine, opened: p.ModelAnswer) -> None:
        self._opened_on = engine
        self._handle = opened.document
        self._opened = engine.document(opened.document)

    @classmethod
    def of_model(
        cls,
        engine: Engine,
        model: str | Path | bytes | onnx.ModelProto,
        shapes: Sizes | None = None,
        inputs_npz: bytes | None = None,
    ) -> Session:
        """Open a model on an engine; see ``open_model``.

        Args:
            engine: The engine.
            model: The model.
            shapes: Sizes of inputs.
            inputs_npz: Representative inputs, whose sizes count where ``shapes`` says nothing.
        """
        content = _content(model)
        request = p.ModelOpen(
            path=str(_path(model)) if content is None else None,
            content=content,
            name="model.onnx",
            shapes=_typed("shapes", shapes or {}, Sizes),
            inputs_npz=inputs_npz,
        )
        return cls(engine, engine.request(request))

    @classmethod
    def of_file(cls, engine: Engine, path: str | Path) -> Session:
        """Open a session's file on an engine; see ``load_session``."""
        return cls(engine, engine.request(p.SessionOpen(path=str(path))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what is under way and end the child processes; what was measured is kept.

        What is known can still be looked at; nothing more can be done with the session.
        """
        self._opened_on.close()

    @property
    def _engine(self) -> Engine:
        """Return what does the work; UsageError once the session is closed."""
        if self._opened_on.closed:
            raise UsageError("the session is closed: open the model, or the session's file, again")
        return self._opened_on

    def _ask(self, kind: type[p.Request[p.Answer]], **fields: Any) -> p.Answer:
        """Have a request about the document served; UsageError where a field is wrong."""
        request = _typed(kind.method, {"document": self._handle, **fields}, kind)
        answer: p.Answer = self._engine.request(request)
        return answer

    # -- what is known -----------------------------------------------------------------

    @property
    def document(self) -> Document:
        """Return everything the session holds of this shape."""
        return self._opened.document

    @property
    def shapes(self) -> tuple[ShapeChoice, ...]:
        """Return the shapes that the model is placed for together; none where it is for one."""
        return tuple(entry.choice for entry in answers.shapes_list(self._opened))

    def of_shape(self, dims: Mapping[str, int]) -> Session:
        """Return the session of one of the shapes; it ends with this one.

        Args:
            dims: Sizes of the dimensions that tell the shape from the others.

        Raises:
            UsageError: No shape has these sizes, or several have them.
        """
        named = ShapeChoice(dims=_typed("dims", dims, dict[str, int]))
        entries = answers.shapes_list(self._opened)
        matches = [each for each in entries if named.dims.items() <= each.choice.dims.items()]
        if len(matches) != 1:
            text, every = named.text, ", ".join(e.choice.text for e in entries)
            how = "several shapes" if matches else "no shape"
            held = f"it has {every}" if every else "it is of one shape"
            raise UsageError(f"the session has {how} with {text}: {held}")
        (entry,) = matches
        return Session(self._engine, p.ModelAnswer(document=entry.document, model=entry.model))

    @property
    def model(self) -> ModelRecord:
        """Return the model's file and sizes."""
        return self.document.model

    @property
    def graph(self) -> GraphRecord:
        """The dataflow graph; its calls are the operators 0, 1, 2, … of all other records."""
        return self.document.graph

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return the runs, the oldest first."""
        return tuple(self.document.runs)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Return the pins that the next run keeps."""
        return tuple(self.document.pins)

    def run(self, name: str = "last") -> Run:
        """Return the run of this id, name or number; UsageError where there is none."""
        return self._opened.run(_typed("the run", name, str))

    def operators(self, node: int | str) -> list[int]:
        """Return the operators that a number, or the name of an ONNX node in any case, stands for.

        Raises:
            UsageError: There is no such node, or clean-up removed it.
        """
        document = self.document
        calls = document.graph.nodes
        text = str(node)
        if text.isdigit() and int(text) < len(calls):
            return [int(text)]
        lowered = text.lower()
        found = [n for n, call in enumerate(calls) if lowered in map(str.lower, call.onnx_nodes)]
        if found:
            return found
        if text.isdigit():
            raise UsageError(f"there is no node {text}: operators are 0…{len(calls) - 1}")
        if lowered in map(str.lower, document.model.folded):
            raise UsageError(
                f"clean-up removed the node {text!r}: it is computed once, when the model is "
                "read, and no toolchain runs it"
            )
        near = close_names(text, [name for call in calls for name in call.onnx_nodes])
        hint = f"; near are {', '.join(near)}" if near else ""
        raise UsageError(f"the model has no node {text!r}{hint}")

    def candidates(self, settings: RunSettings | None = None) -> tuple[CandidateRecord, ...]:
        """Return every candidate with the cost that is stored for it; nothing is measured.

        Args:
            settings: Which toolchains, threads and precision; without them the candidates are
                those that the session holds, or of the default settings where it holds none.
        """
        if settings is not None or not self.document.candidates:
            self._ask(p.Enumerate, settings=_settings(settings))
        return tuple(self.document.candidates)

    def explain(self, node: int | str, run: str = "") -> ExplainAnswer:
        """Say why an operator runs where it does; UsageError where there is no such node or run.

        Args:
            node: Its number, or the name of an ONNX node.
            run: Id, name or number of the run whose placement is explained; empty: the newest.
        """
        number = self.operators(node)[0]
        shown = p.ShownCover(run=run)
        return self._opened_on.request(p.Explain(document=self._handle, node=number, shown=shown))

    def compare(self, before: str, after: str) -> Comparison:
        """Compare two runs, named by id, name or number; differences are ``after - before``."""
        return compare_runs(self.run(before), self.run(after), self.graph)

    def profile(self, toolchain: str, settings: RunSettings | None = None) -> Run:
        """Add what a runtime says of its own layers to the runs, as one that everything shows.

        Args:
            toolchain: The runtime, which profiles the model by its own means.
            settings: Threads, precision and inputs.

        Raises:
            UsageError: There is no such runtime, or it has no such means.
            ToolchainError: It does not take the model.
        """
        return self._ask(p.ProfileMake, settings=_settings(settings), toolchain=toolchain)

    def read_profile(self, file: str | Path) -> Run:
        """Add what a runtime's own tools wrote of the model to the runs; see ``profile``.

        Args:
            file: The profile of ONNX Runtime, the counters of benchmark_app as CSV or JSON, or the
                layers of trtexec.

        Raises:
            UsageError: The file is none of these.
        """
        return self._ask(p.ProfileRead, path=str(_path(file)))

    def report(self, kind: ReportFormat, run: str | None = None) -> bytes:
        """Return the content of a report's file.

        Args:
            kind: The file's format; ``csv`` lists the candidates, ``shapes`` (CSV, too) the
                shapes that were placed for one artifact.
            run: Id, name or number of the run; the newest by default.
        """
        run = _typed("the run", run, str | None)
        request = p.ExportReport(document=self._handle, run=run, format=kind)
        return self._opened_on.request(request).content or b""

    # -- what changes it ---------------------------------------------------------------

    def pin(self, *texts: str) -> None:
        """Replace the pins by these, written as for ``collage place --pin``.

        Args:
            texts: The pins.

        Raises:
            UsageError: A text is no pin, or matches no node, or names no toolchain.
        """
        texts = _typed("the pins", texts, tuple[str, ...])
        answers.set_pins(self._engine.document(self._handle), texts)

    def place(
        self,
        settings: RunSettings | None = None,
        *,
        out: str | Path | None = None,
        spent_s: float = 0.0,
    ) -> Run:
        """Measure, search and confirm a placement; blocks until it is done.

        Args:
            settings: Budget, toolchains, precision and limits; by default ten minutes on all.
            out: Folder to export the winner to; none is written without it.
            spent_s: Seconds of the budget that were spent before, such as on opening the model.

        Returns:
            The run, which the session holds from now on too.

        Raises:
            InfeasibleError: Pins and limits leave no placement.
            Cancelled: ``cancel`` was called; what was measured is kept.
            ArtifactError: The artifact cannot be written; the session holds the run.
        """
        engine, settings = self._engine, _settings(settings)
        target = None if out is None else str(_new_folder(out))
        request = p.RunStart(document=self._handle, settings=settings, out=target, spent_s=spent_s)
        if settings.objective == "throughput":
            from collage_engine.farm.several_runs import place_for_throughput

            return place_for_throughput(engine, request)
        return engine.run(request)

    def cancel(self, *, keep: bool = False) -> bool:
        """Stop the run under way, from another thread.

        Args:
            keep: Let it confirm its best placement so far and return that, which takes some
                seconds; a second call then stops it at once.

        Returns:
            Whether there was a run.
        """
        return self._opened_on.keep() if keep else self._opened_on.cancel()

    def continue_from(self, path: str | Path, choice: ShapeChoice | None = None) -> None:
        """Take over the runs of a session's file, if there is one, to save to it again.

        Where the file holds several shapes, saving to it keeps the others.

        Args:
            path: The file.
            choice: What this shape is called among them, if it is a new one.

        Raises:
            UsageError: What is at ``path`` is no session of this model, or is of one other shape.
        """
        self._ask(p.SessionContinue, path=str(_path(path)), choice=choice)

    def export(self, out: str | Path, run: str = "last") -> None:
        """Write a run's placement as an artifact that runs without this program.

        Args:
            out: The folder; it must be new, empty or an artifact.
            run: Id, name or number of the run.
        """
        self._ask(p.ExportArtifact, run=run, path=str(_new_folder(out).resolve()))

    def export_operator(
        self, model: str | Path, out: str | Path, run: str = "last", *, others: bool | None = None
    ) -> Path:
        """Write a run's placement as an artifact, and as one operator of ONNX Runtime that runs it.

        Args:
            model: The ONNX file of one operator to write.
            out: The artifact's folder; it must be new, empty or an artifact.
            run: Id, name or number of the run.
            others: As for ``export_shapes``, whose artifact it is then; None: that of one run.

        Returns:
            The library in the folder, for ``SessionOptions.register_custom_ops_library``.

        Raises:
            UsageError: The placement cannot run inside a process of ONNX Runtime; the artifact is
                there nevertheless.
            ToolchainError: There is no C++ compiler for the library.
        """
        from collage_engine.artifact.custom_op import embed

        model, folder = _path(model), _path(out)
        check_writable(model)
        if others is None:
            self.export(folder, run)
        else:
            self.export_shapes(folder, others=others)
        own = Path(self.model.path)
        return embed(folder, model, own if own.is_file() else None)

    def export_shapes(self, out: str | Path, *, others: bool = False) -> None:
        """Write one artifact with an entry for each shape, from the newest run of each.

        Args:
            out: The folder; it must be new, empty or an artifact.
            others: Whether it takes any other shape, too, by the model's own file.
        """
        self._ask(p.ExportShapes, path=str(_new_folder(out).resolve()), others=others)

    def save(self, path: str | Path) -> None:
        """Write everything to a ``.collage`` file; SessionError if that is not possible."""
        self._ask(p.SessionSave, path=str(_path(path)))


class PlacedModel:
    """What ``place`` found out of a model; in a notebook its graph, coloured, and its times.

    Attributes:
        session: For going on: other pins, further runs, comparisons. Its processes end with this
            object.
        run: The run, with everything that is known of it.
    """

    def __init__(self, session: Session, run: Run) -> None:
        self.session = session
        self.run = run
        self.close = weakref.finalize(self, session.close)
        """Ends the processes now; what is known can still be looked at."""

    @property
    def latency_us(self) -> float | None:
        """Return what a run of the model takes, in microseconds; None: it was not measured."""
        return self.run.placement.measured_us if self.run.placement is not None else None

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions of the placement, in the order in which they run."""
        return self.run.placement.partitions if self.run.placement is not None else ()

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """Return what it was compared with: each toolchain alone, and others."""
        return tuple(self.run.baselines)

    def explain(self, node: int | str) -> ExplainAnswer:
        """Say why an operator runs where it does; printed, the answer is a few sentences.

        Args:
            node: The name of an ONNX node, or an operator's number.
        """
        return self.session.explain(node, self.run.id)

    def export(self, folder: str | Path) -> None:
        """Write the placement as an artifact that runs without this program; see ``load``."""
        self.session.export(folder, self.run.id)

    def save(self, path: str | Path) -> None:
        """Write a ``.collage`` file, which the command line and the desktop open."""
        self.session.save(path)

    def to_frame(self, table: Literal["csv", "latencies", "runs", "shapes"] = "csv") -> Any:
        """Return a table as a ``pandas.DataFrame``; as a list of dictionaries without pandas.

        Args:
            table: The candidates (``csv``, as in the report of that name), the placement beside
                its baselines, the session's runs, or the shapes placed together.
        """
        from collage_engine.drawing.report import TABLES

        if table not in TABLES:
            raise UsageError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        rows = TABLES[table](self.session.document, self.run)
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def to_networkx(self) -> nx.DiGraph[int]:
        """Return the dataflow graph with the partition and toolchain of each operator."""
        from collage_engine.drawing.exports import networkx_graph

        return networkx_graph(self.session.graph, self.run.placement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        from collage_engine.wording.figures import verdict_sentence
        from collage_engine.wording.titles import register_toolchains

        register_toolchains(self.run.toolchains)
        name = Path(self.session.model.path).name
        parts = counted(len(self.partitions), "partition")
        return f"<PlacedModel {name}, {parts}: {verdict_sentence(self.run)}>"

    def _repr_html_(self) -> str:
        return self.session.report("notebook", self.run.id).decode()


def _progress_report() -> ProgressReport:
    """Return what shows progress on standard error, also in a notebook."""
    from rich.console import Console

    from collage_engine.drawing.progress import ProgressReport

    return ProgressReport(Console(stderr=True, highlight=False, force_jupyter=False))


# -- what callers may give -------------------------------------------------------------


def _typed(name: str, value: object, kind: Any) -> Any:
    """Return a value as the type that it must have; UsageError where it has another one."""
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}") from error


def _path(value: object) -> Path:
    """Return a path; UsageError where the value is none."""
    if not isinstance(value, (str, Path)):
        raise UsageError(f"a path is a text or a Path, and this is {type(value).__name__!r}")
    return Path(value)


def _new_folder(out: object) -> Path:
    """Return the path of an artifact's folder; ArtifactError where none can be there."""
    from collage_engine.artifact.artifact import check_target_folder

    folder = _path(out)
    check_target_folder(folder)
    return folder


def _settings(settings: object) -> RunSettings:
    """Return the settings of a run; UsageError where the value is none."""
    checked: RunSettings = _typed("settings", settings or RunSettings(), RunSettings)
    return checked


def _content(model: object) -> bytes | None:
    """Return the file's bytes of a model in memory; None: it is none, but perhaps a path."""
    if isinstance(model, bytes):
        return model
    if not hasattr(model, "SerializeToString"):
        return None
    try:
        content: bytes = model.SerializeToString()
    except ValueError as error:  # protobuf writes no message above 2 GiB
        raise UsageError(
            f"the model in memory cannot be written as one file: {error}; save it with its weights "
            "in a file beside it, and open that"
        ) from error
    return content


def _engine(listener: Listener | None) -> Engine:
    return Engine() if listener is None else Engine(lambda _, event: listener(event))
