"""Defines the toolchain ``evil`` itself; see the package."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.machine.folders import cache_folder
from collage_engine.partition.rules import AskedRule
from collage_engine.records.toolchain import Target, ToolchainInstance, ToolchainState
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource
from tests import example_toolchain as example
from tests.example_toolchain.toolchain import ExampleToolchain
from tests.support.misbehaving import COMPUTING, PLACES, REACHED, VARIABLE, misbehave

HOOK = """
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <cstring>

static float Misbehave() {
  static const char* wanted = std::getenv("@VARIABLE@");
  if (wanted == nullptr) return 0.0f;
  static char process[17] = "";
  if (process[0] == 0) prctl(PR_GET_NAME, process);
  const char* at = std::strchr(wanted, '@');
  if (at == nullptr) return 0.0f;
  const char* here = "";
@PLACES@
  if (std::strcmp(at + 1, here) != 0) return 0.0f;
  static const char* reached = std::getenv("@REACHED@");
  if (reached != nullptr) close(open(reached, O_CREAT | O_WRONLY, 0644));
  if (std::strncmp(wanted, "abort", 5) == 0) { dprintf(2, "evil: abort\\n"); std::abort(); }
  if (std::strncmp(wanted, "segfault", 8) == 0) raise(SIGSEGV);
  if (std::strncmp(wanted, "exit", 4) == 0) _exit(0);
  if (std::strncmp(wanted, "hang", 4) == 0) sleep(3600);
  if (std::strncmp(wanted, "slow", 4) == 0) usleep(300000);
  if (std::strncmp(wanted, "memory", 6) == 0) {
    for (;;) std::memset(std::malloc(64 << 20), 1, 64 << 20);
  }
  return std::strncmp(wanted, "wrong", 5) == 0 ? 0.25f : 0.0f;
}
"""
EXECUTE = "  void Execute() final {\n"


@cache
def source_file() -> Path:
    """Writes the example's runtime with a call of the hook before its work; returns its path."""
    original = Path(example.__file__).parent / "src" / "example_module.cc"
    text = original.read_text()
    assert EXECUTE in text and "out[n] = unary ?" in text
    text = text.replace(EXECUTE, EXECUTE + "    offset_ = Misbehave();\n")
    text = text.replace("unary(first[a])", "unary(first[a]) + offset_")
    text = text.replace("binary(first[a], second[b])", "binary(first[a], second[b]) + offset_")
    text = text.replace(
        "  size_t weights_bytes_;", "  float offset_ = 0.0f;\n  size_t weights_bytes_;"
    )
    # Calls are watched in these processes; what is compiled is watched in Python.
    calls = {place: PLACES[place] for place in COMPUTING}
    places = "\n".join(
        f'  if (std::strncmp(process, "{name}", {len(name)}) == 0) here = "{place}";'
        for place, name in calls.items()
    )
    hook = HOOK.replace("@VARIABLE@", VARIABLE).replace("@PLACES@", places)
    hook = hook.replace("@REACHED@", REACHED)
    last = text.rindex("#include")
    end = text.index("\n", last) + 1
    folder = cache_folder() / "evil-source"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "evil_module.cc"
    changed = text[:end] + hook + text[end:]
    if not path.exists() or path.read_text() != changed:
        path.write_text(changed)
    return path


class EvilToolchain(ExampleToolchain):
    """The example's toolchain, but for what ``EVIL_BEHAVIOUR`` says."""

    about = msgspec.structs.replace(
        ExampleToolchain.about, name="evil", title="Evil", colour="", letters="", pattern=""
    )

    def probe(self) -> ToolchainState:
        return None if misbehave("probe") else super().probe()

    def source(self) -> RuntimeSource:
        return replace(super().source(), main=source_file())

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        if misbehave("instances"):
            return None
        return (ToolchainInstance(toolchain=self.name, threads=target.threads),)

    def supports(self, graph: Any, index: Any, instance: ToolchainInstance) -> str | None:
        return 5 if misbehave("supports") else super().supports(graph, index, instance)

    def partition_spec(self, instance: ToolchainInstance, graph: Any) -> Any:
        if misbehave("partition_spec"):
            return None
        spec = super().partition_spec(instance, graph)

        class Rule(AskedRule):
            def candidates(self, graph: Any) -> Any:
                return 5 if misbehave("rules") else super().candidates(graph)

        return Rule(spec.name, spec, contextlib.nullcontext)

    def compile(self, function: Function) -> Any:
        garbage = [misbehave(place) for place in ("compile", "build")]
        return None if any(garbage) else super().compile(function)

    def runtime_libraries(self) -> Any:
        return None if misbehave("libraries") else super().runtime_libraries()


misbehave("import")
