"""Tango computes what the example of the documentation does, as a package of its own."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout

# The test copies ``tests/example_toolchain`` into this package.
from collage_tango.example.toolchain import ExampleToolchain


class TangoToolchain(ExampleToolchain):
    """Without a colour, letters or a pattern: they are generated."""

    about = ToolchainAbout(name="tango", title="Tango", licence="MIT", whole_model=False)

    def version(self) -> str:
        return "0.3"

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        part = RuntimeLibrary(
            file=str(Path(__file__).parent / "part.py"),
            name="tango_part.py",
            toolchain=self.name,
            version=self.version(),
            licence="Zlib",
            python="math",
        )
        return self.own_library(), part
