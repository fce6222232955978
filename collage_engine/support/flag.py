"""What tells a long piece of work that it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Flag(Protocol):
    """Something that is set once the work is to stop; ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Tell whether the work is to stop."""
        ...


@dataclass(frozen=True)
class FlagWhen:
    """A flag that is set whenever a condition holds."""

    condition: Callable[[], bool]

    def is_set(self) -> bool:
        """Tell whether the condition holds now."""
        return self.condition()
