"""Opens every model of ONNX's own tests and of the zoo, and writes what became of each.

``python -m tests.support.standard_models OUT.json`` opens the operator tests of the standard, its
converted and light models and the zoo, each in a child process with a limit of time.
``python -m tests.support.standard_models BEFORE.json AFTER.json`` compares two such files: a model
that was opened before and is refused now is printed with the sentence and with what ONNX Runtime
says about it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, numpy_helper

DATA = Path(onnx.__file__).parent / "backend/test/data"
WORKERS = 2
"""Child processes at a time; chosen: the machines that this runs on have two processors."""
LIMIT_S = 120.0
"""Seconds for one model; chosen: the largest takes a few."""


def node_tests() -> Iterator[tuple[str, ModelProto]]:
    """Yields the standard's operator tests, also with all inputs but one as constants."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is None:
            continue
        yield case.name, case.model
        inputs = case.model.graph.input
        if len(inputs) > 1 and case.data_sets:
            yield f"{case.name}, constant inputs", _with_constants(case.model, case.data_sets[0][0])


def _with_constants(model: ModelProto, values: Any) -> ModelProto:
    """Returns the model with all inputs but the first as constants of these values."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for info, value in list(zip(model.graph.input, values, strict=False))[1:]:
        if not info.type.HasField("tensor_type") or value is None:
            continue
        array = numpy_helper.to_array(value) if hasattr(value, "raw_data") else value
        if not hasattr(array, "dtype") or array.dtype.kind in "OUS":
            continue
        tensor = numpy_helper.from_array(array, info.name)
        if tensor.data_type != info.type.tensor_type.elem_type:
            continue
        copy.graph.initializer.append(tensor)
        copy.graph.input.remove(next(i for i in copy.graph.input if i.name == info.name))
    return copy


def stored_models() -> Iterator[tuple[str, Path]]:
    """Yields the standard's models that are files: converted ones, simple ones and light ones."""
    for path in sorted(DATA.rglob("*.onnx")):
        yield path.relative_to(DATA).as_posix(), path


def open_one(payload: tuple[str, dict[str, tuple[int, ...]]]) -> dict[str, str]:
    """Open one file with these input shapes in this process and say what became of it."""
    from collage_engine.model.importer import import_model
    from collage_engine.records.errors import CollageError

    path, shapes = payload
    try:
        model = import_model(path, shapes)
    except CollageError as error:
        said = str(error).replace(str(Path(path)), "MODEL")
        return {"state": "refused", "said": said, "runtime": _runtime(path)}
    except Exception as error:
        return {"state": "defect", "said": f"{type(error).__name__}: {error}"}
    return {"state": "opened", "said": str(len(model.graph.operators))}


def _runtime(path: str) -> str:
    """Returns what ONNX Runtime says about the file: "loads", or why it refuses it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)[:300]
    return "loads"


def collect(out: Path) -> None:
    """Open every model and write name → what became of it as JSON."""
    from tests import zoo
    from tests.support.children import map_in_children

    with tempfile.TemporaryDirectory() as folder:
        names: list[str] = []
        jobs: list[tuple[str, dict[str, tuple[int, ...]]]] = []

        def add(name: str, model: ModelProto) -> None:
            path = Path(folder) / f"{len(names)}.onnx"
            path.write_bytes(model.SerializeToString())
            names.append(name)
            jobs.append((str(path), zoo.SHAPES.get(name.removeprefix("zoo "), {})))

        for name, model in node_tests():
            add(name, model)
        for name in (*zoo.SMALL, *zoo.REAL):
            add(f"zoo {name}", zoo.build(name))
        for name, stored in stored_models():
            names.append(name)
            jobs.append((str(stored), {}))
        found = map_in_children(
            "tests.support.standard_models:open_one", jobs, workers=WORKERS, timeout_s=LIMIT_S
        )
    answers = {
        name: result if isinstance(result, dict) else {"state": "died", "said": str(result)}
        for name, result in zip(names, found, strict=True)
    }
    out.write_text(json.dumps(answers, indent=1))
    print(Counter(answer["state"] for answer in answers.values()))


def compare(before: Path, after: Path) -> int:
    """Print the models whose state changed; the number of those that were opened and are not."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    lost = 0
    for name, was in old.items():
        now = new.get(name, {"state": "absent", "said": ""})
        if was["state"] != now["state"]:
            lost += was["state"] == "opened"
            print(f"{name}: {was['state']} → {now['state']}: {now['said'][:200]}")
            print(f"    ONNX Runtime: {now.get('runtime', '')[:200]}")
    for each in (old, new):
        print(Counter(answer["state"] for answer in each.values()))
    return lost


def main(arguments: list[str]) -> int:
    """Collect, or compare two collections."""
    if len(arguments) == 2:
        return min(1, compare(Path(arguments[0]), Path(arguments[1])))
    collect(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
