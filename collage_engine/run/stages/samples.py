"""The step that computes the reference's outputs on the run's inputs.

It says what the check of numbers against these allows, refused and missed, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_engine.candidates.inputs import (
    model_samples,
    run_tolerance,
    stated_errors,
    unchecked,
)
from collage_engine.machine.run_control import RunControl
from collage_engine.model.importer import ImportedModel
from collage_engine.model.own_file import FIRST_CONSTANT_INITIALIZERS
from collage_engine.records.precision import TOLERANCES, RunTolerance
from collage_engine.records.settings import RunSettings
from collage_engine.run.task import RunSamples, RunTask
from collage_engine.support.errors import MeasureError, displayable
from collage_engine.support.text import counted
from collage_engine.trials.contender import ContenderResult, Sample

MORE_SAMPLES = 3
"""Further random inputs on which the tolerance must be kept. With one image, choices of products
broke their tolerance on fresh images four to eight times over on two of seven models; with four
they kept it but for one, which took twice the tolerance. The user's samples are taken as given."""


def draw_samples(task: RunTask, control: RunControl) -> RunSamples:
    """Run the user's own file on the run's inputs, and measure how far rounding moves outputs.

    It is too short to report progress.

    Raises:
        MeasureError: None of them checks anything, and an artifact is wanted.
    """
    model, settings = task.open_model.model, task.settings
    samples = model_samples(model, settings, MORE_SAMPLES if settings.promises_accuracy else 0)
    not_finite = unchecked(samples)
    if task.out is not None:
        refuse_unchecked([name for name, _ in model.outputs], not_finite, settings)
    for sentence in (*default_warnings(model), *sample_warnings(not_finite, settings)):
        control.warn(sentence)
    given = samples[0].inputs
    tolerance = run_tolerance(model, settings, given, control.cancelled.is_set)
    bounds = {name: tolerance.by_output.get(name, tolerance.value) for name, _ in model.outputs}
    for name, error in stated_errors(samples, bounds).items():
        control.warn(
            f"the test data says something else of the output {name!r} than the model's file "
            f"computes (relative error {error:.1e}); placements are compared with what the file "
            "computes"
        )
    nowhere = frozenset(name for name, share in not_finite.items() if share == 1.0)
    drawn = (Sample(one.inputs, one.truth, tolerance.by_output, nowhere) for one in samples)
    return RunSamples(all=tuple(drawn), run_tolerance=tolerance, not_finite=not_finite)


def default_warnings(model: ImportedModel) -> list[str]:
    """Return a sentence on inputs that became constants, where the file's format asks for none.

    Older formats list every weight among the inputs.
    """
    names = model.defaults
    if not names or model.ir_version < FIRST_CONSTANT_INITIALIZERS:
        return []
    which = ", ".join(map(repr, map(displayable, names[:3]))) + (", …" if len(names) > 3 else "")
    return [
        f"the file holds values for {counted(len(names), 'input')} ({which}), which are constants "
        "now; --keep-inputs NAME keeps one as an input. ONNX Runtime by itself folds and packs no "
        "such input, since a call may replace it, and can take several times as long: for programs "
        'of your own save the file without them, by python -c "import onnx; '
        f"m = onnx.load({model.record.path!r}); w = {{t.name for t in m.graph.initializer}}; "
        "k = [v for v in m.graph.input if v.name not in w]; m.graph.ClearField('input'); "
        "m.graph.input.extend(k); onnx.save(m, 'constants.onnx')\""
    ]


def sample_warnings(not_finite: Mapping[str, float], settings: RunSettings) -> list[str]:
    """Return sentences on outputs that the samples do not check, or not wholly.

    Args:
        not_finite: By output the share of its true values that compare nothing.
        settings: The run's settings.
    """
    given = settings.inputs_npz is not None
    none = [name for name, share in not_finite.items() if share == 1.0]
    said = []
    if none:
        said.append(
            f"not checked: {', '.join(map(repr, none))}: {_nothing_finite(settings)}, so that "
            "wrong results would not be noticed; give inputs that the model is made for with "
            "--inputs"
        )
    part = {name: share for name, share in not_finite.items() if share < 1.0}
    if part and not given:
        shares = ", ".join(f"{share:.0%} of {name!r}" for name, share in part.items())
        said.append(
            f"not checked: {shares}: on random inputs these values are NaN or infinite; inputs "
            "that the model is made for (--inputs) may check them"
        )
    return said


def refuse_unchecked(
    outputs: Sequence[str], not_finite: Mapping[str, float], settings: RunSettings
) -> None:
    """Refuse to export what could be wrong altogether.

    Args:
        outputs: The model's outputs.
        not_finite: By output the share of its true values that compare nothing.
        settings: The run's settings, which may ask for it all the same.

    Raises:
        MeasureError: No output was checked.
    """
    if settings.unchecked or not all(not_finite.get(name) == 1.0 for name in outputs):
        return
    raise MeasureError(
        f"no output could be checked: {_nothing_finite(settings)}; give inputs that the model is "
        "made for with --inputs FILE.npz, or export it as it is with --unchecked (in the desktop: "
        "run again with Export what cannot be checked)"
    )


def _nothing_finite(settings: RunSettings) -> str:
    """Return why the samples check nothing of an output."""
    if settings.inputs_npz is not None:
        return "on the given inputs all of the true values are NaN or infinite"
    return "on no range of random inputs is any of the true values finite"


def tolerance_warnings(tolerance: RunTolerance, outcomes: Sequence[ContenderResult]) -> list[str]:
    """Return sentences on contenders that were refused for their numbers.

    They stand at the top of every report. There are none where only a minority was refused and the
    tolerance is above what rounding asks for.

    Args:
        tolerance: The run's tolerance.
        outcomes: What became of all contenders.
    """
    said = []
    if tolerance.source == "user" and tolerance.noise:
        name, moved = max(tolerance.noise.items(), key=lambda one: one[1])
        said.append(
            f"the model amplifies rounding: its output {name!r} moves by {moved:.1e} when inputs "
            f"and weights change in the last bit, and the given tolerance of {tolerance.value:g} "
            "is hardly more; what only computes in another order may be refused"
        )
    bounds = tolerance.by_output or {"": tolerance.value}
    name, bound = max(bounds.items(), key=lambda one: one[1])
    # To a reader of the numbers an error above that of half precision is no rounding.
    if bound > TOLERANCES["float16"] and tolerance.source != "user":
        which = f"{name!r}" if name else "an output"
        amplified = name in tolerance.noise or (not name and tolerance.source == "rounding")
        why = "the model amplifies rounding" if amplified else "its values are rounded to so much"
        said.append(
            f"errors of {which} up to {bound:.2g} of its largest value are taken for right: {why} "
            "(--tolerance sets another bound)"
        )
    ran = [outcome for outcome in outcomes if outcome.max_rel_error is not None]
    # An error below the tolerance is one of whole numbers, which no --tolerance admits.
    errors = sorted(one.max_rel_error or 0.0 for one in ran if one.reason is not None)
    errors = [error for error in errors if error > tolerance.value]
    if errors and 2 * len(errors) >= len(ran):
        said.append(
            f"{len(errors)} of {len(ran)} contenders were refused because their outputs differ "
            f"from the reference's by {errors[0]:.1e} to {errors[-1]:.1e}, more than the tolerance "
            f"of {tolerance.value:g}; what is left may be much slower than they are (--tolerance "
            "admits more of floats, and never of whole numbers)"
        )
    return said
