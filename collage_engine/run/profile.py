"""Profiles a model by a runtime's own means, and reads what runtimes' tools wrote of it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.device import physical_cores
from collage_engine.records.placement import Profile
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.samples import default_warnings
from collage_engine.support.errors import ToolchainError, UsageError, short_reason
from collage_engine.support.files import LARGEST_TEXT, read_file
from collage_engine.toolchains.capabilities import ProfilesLayers, ReadsProfiles
from collage_engine.toolchains.registry import all_names, get


def profile_model(opened: OpenModel, settings: RunSettings, toolchain: str) -> Profile:
    """Run the user's file in a runtime, as its users do, with its own profiling.

    Raises:
        UsageError: The toolchain has no such means, or there is none of this name.
        ToolchainError: It is not installed, or does not take the model.
    """
    runtime = get(toolchain)
    if not isinstance(runtime, ProfilesLayers):
        names = [name for name in all_names() if isinstance(get(name), ProfilesLayers)]
        raise UsageError(f"{toolchain} has no profiling of its own; {', '.join(names)} have")
    inputs = representative_inputs(opened.model, settings)
    threads = settings.threads or physical_cores()
    path = opened.model.record.path
    try:
        profile = runtime.profile_layers(path, threads, settings.precision, inputs)
        return msgspec.structs.replace(profile, warnings=tuple(default_warnings(opened.model)))
    except (ToolchainError, UsageError):
        raise
    except Exception as error:  # runtimes have error classes of their own
        reason = short_reason(error, line="first")
        raise ToolchainError(f"{runtime.about.title} cannot run {path}: {reason}") from error


def read_profile(file: Path) -> Profile:
    """Read a file that some runtime's own tools wrote of its layers.

    Raises:
        UsageError: It cannot be read, or is of no kind that is known.
    """
    try:
        text = read_file(file, LARGEST_TEXT).decode()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    for name in all_names():
        runtime = get(name)
        if not isinstance(runtime, ReadsProfiles):
            continue
        try:
            entries = runtime.read_profile(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{file} looks like a profile of {runtime.about.title} and is none: "
                f"{short_reason(error)}"
            ) from error
        if entries is not None and entries.layers:
            return entries
    raise UsageError(
        f"{file} is no profile: known are the JSON file of ONNX Runtime's profiling, the counters "
        "of benchmark_app as CSV or JSON, and trtexec's files of layers"
    )
