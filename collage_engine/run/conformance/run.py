"""Runs the checks in a child process, which a toolchain may crash, and collects what they say."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.run.conformance.checks import CHECKS, FOUNDATIONS
from collage_engine.run.conformance.subject import Nonconformance, NotApplicable, Subject
from collage_engine.support.errors import CollageError, ToolchainError, fault_reason, short_reason
from collage_engine.support.time_limits import WORK_S
from collage_engine.timing.child import measuring_environment
from collage_engine.toolchains import registry

JOB = "collage_engine.run.conformance.run:run_checks"

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found; ``text`` is a sentence for the toolchain's author."""

    check: str
    outcome: Outcome
    text: str


def examine(check: str, subject: Subject) -> Finding:
    """Run one check of ``CHECKS`` in this process.

    Where the toolchain is not available, a ``ToolchainError`` is a right answer to any question
    that it cannot answer without its package, so the check is skipped with that sentence.
    """
    try:
        return Finding(check, "passed", CHECKS[check](subject))
    except NotApplicable as reason:
        return Finding(check, "skipped", str(reason))
    except Nonconformance as error:
        return Finding(check, "failed", str(error))
    except CollageError as error:
        lacking = isinstance(error, ToolchainError) and not subject.state.available
        return Finding(check, "skipped" if lacking else "failed", str(error))
    except Exception as error:  # a defect of the toolchain, whatever its type
        return Finding(check, "failed", f"it raises {fault_reason(error)}")


def check_toolchain(name: str, on_finding: Callable[[Finding], None]) -> list[Finding]:
    """Run all checks over a toolchain that the registry knows.

    Args:
        name: The toolchain's name.
        on_finding: Is called with every finding, as soon as it is there.

    Returns:
        All findings. Where one of ``FOUNDATIONS`` has failed, or the toolchain has ended the child
        process, the checks after it were not made.

    Raises:
        UsageError: There is no such toolchain.
    """
    findings: list[Finding] = []

    def keep(finding: Finding) -> None:
        findings.append(finding)
        on_finding(finding)

    try:
        registry.get(name)
    except ToolchainError as error:
        keep(Finding(next(iter(CHECKS)), "failed", str(error)))
        return findings
    env = measuring_environment([name], 2)
    with Worker(JOB, env=env, name="collage-check") as worker:
        try:
            worker.call(name, timeout_s=WORK_S, on_message=keep)
        except WorkerError as error:
            check = list(CHECKS)[min(len(findings), len(CHECKS) - 1)]
            keep(Finding(check, "failed", f"it ended the process: {short_reason(error)}"))
    return findings


def run_checks(name: str, send: Callable[[Finding], None]) -> None:
    """Make the checks in turn in the child process, and send each finding at once."""
    with tempfile.TemporaryDirectory(prefix="collage-check-") as folder:
        subject = Subject(name, Path(folder))
        for check in CHECKS:
            finding = examine(check, subject)
            send(finding)
            if finding.outcome == "failed" and check in FOUNDATIONS:
                return
