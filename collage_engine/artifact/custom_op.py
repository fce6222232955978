"""Offers an artifact as one operator of ONNX Runtime: a model of one node, and its library.

The library (``loader/custom_op.cc``) lies in the artifact's folder, beside copies of TVM's runtime
libraries, and finds the artifact there. The model's node names the artifact by a hash of its
files' hashes; the ONNX file may lie anywhere.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.artifact.artifact import LOADERS, ORT_SOURCES, write_manifest
from collage_engine.artifact.manifest import file_entry, read_manifest
from collage_engine.machine.loader.run_artifact import (
    Value,
    is_session,
    numpy_dtype,
    sha256,
    values_of,
)
from collage_engine.model.onnx_external import every_tensor
from collage_engine.model.onnx_file import files_beside, read_without_weights
from collage_engine.support.errors import UsageError
from collage_engine.support.files import write_atomically
from collage_engine.toolchains.runtime import builder

if TYPE_CHECKING:
    import onnx

LIBRARY = "libcollage_custom_op.so"
"""Name of the library in the artifact's folder."""
DOMAIN = "collage"
"""Domain of the operator."""
TVM_LIBRARIES = {"libtvm_ffi.so": "apache-tvm-ffi", "libtvm_runtime.so": "apache-tvm"}
"""TVM's runtime libraries, and the packages that carry them."""
EIGHT_BITS = (2, 3)
"""ONNX's numbers of uint8 and int8."""
IR_VERSION, OPSET = 8, 17
"""Versions of the ONNX file, which every runtime that the library takes can read."""


def embed(artifact: Path, model: Path, own: Path | None = None) -> Path:
    """Put the library into an artifact's folder, and write the model of one node that runs it.

    Where the placement is ONNX Runtime alone, the model's own file is that model: the host's
    session runs it without an operator around it, which costs 6 to 10 µs a call.

    Args:
        artifact: The artifact's folder, whose manifest then lists the library, too.
        model: The ONNX file to write.
        own: The model's own file, if it is still there.

    Returns:
        The library, for ``SessionOptions.register_custom_ops_library``.

    Raises:
        UsageError: The artifact cannot run so.
        ToolchainError: The library cannot be compiled.
    """
    manifest = read_manifest(artifact)
    reason = _why_not(artifact, manifest)
    if reason is not None:
        raise UsageError(f"{artifact} cannot run as an operator of ONNX Runtime: {reason}")
    carried = {name: builder.find_in_wheel(of, name) for name, of in TVM_LIBRARIES.items()}
    carried[LIBRARY] = builder.build(source())
    for name, file in carried.items():
        shutil.copyfile(file, artifact / name)
        manifest["files"][name] = file_entry(file, "Apache-2.0")
    contents = json.dumps(manifest["files"], sort_keys=True)
    manifest["operator"] = f"Placement_{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    write_manifest(artifact, manifest)
    is_own = own is not None and is_session(manifest) and _runs_alike_anywhere(own, manifest)
    content = own.read_bytes() if own and is_own else _model(manifest).SerializeToString()
    write_atomically(model, content)
    return artifact / LIBRARY


def _why_not(artifact: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return why an artifact cannot run as an operator of a host process; None: it can."""
    if manifest["device"] != "cpu":
        return "its partitions run on a device, and the operator takes values of the processor"
    for entry in manifest.get("entries", [{"folder": ""}]):
        about = read_manifest(artifact / entry["folder"])
        if about.get("requires"):
            return str(about["requires"][0]["reason"])
        if any(value["dtype"] == "string" for value in (*about["inputs"], *about["outputs"])):
            return "it takes or gives texts, which the loader in Python takes only"
    return None


def _runs_alike_anywhere(own: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether a file is the one that was placed, complete, and computed alike in any session.

    Sums of products of 8 bits saturate on processors without VNNI, unless a session's options say
    otherwise.
    """
    if sha256(own) != manifest["model"]["sha256"] or files_beside(own):
        return False
    tensors = every_tensor(read_without_weights(own))
    return not any(tensor.data_type in EIGHT_BITS for tensor in tensors)


def source() -> builder.RuntimeSource:
    """Return the sources of the library; it is the same for every artifact."""
    return builder.RuntimeSource(
        toolchain="custom_op",
        main=LOADERS / "custom_op.cc",
        shared=(ORT_SOURCES,),
        library_version=builder.wheel_version("apache-tvm"),
        links=(builder.find_in_wheel("apache-tvm", "libtvm_runtime.so"),),
    )


def _model(manifest: dict[str, Any]) -> onnx.ModelProto:
    """Return the model of one node with an artifact's inputs and outputs."""
    from onnx import helper

    # Sizes by their names in the model's file, where more than one shape is taken.
    sizes = manifest["model"]["sizes"] if "entries" in manifest else {}

    def value(about: Value) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(numpy_dtype(about.dtype))
        shape = sizes.get(about.name, about.shape)
        return helper.make_tensor_value_info(about.name, dtype, shape)

    inputs = [value(about) for about in values_of(manifest, "inputs")]
    outputs = [value(about) for about in values_of(manifest, "outputs")]
    node = helper.make_node(
        manifest["operator"],
        [input_.name for input_ in inputs],
        [output.name for output in outputs],
        name="placement",
        domain=DOMAIN,
    )
    graph = helper.make_graph([node], Path(manifest["model"]["name"]).stem, inputs, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="collage-explorer"
    )
    helper.set_model_props(model, manifest["model"]["metadata"])
    return model
