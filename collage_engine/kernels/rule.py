"""Defines the protocol of every method that writes a kernel: problems, plans, rules, registry.

A *problem* is a piece of work with its sizes: one convolution or one matrix product. A *rule* is
one method of solving problems of a kind, for example Winograd's method for 3×3 convolutions. A
*plan* holds the parameters by which its rule writes the code for one problem: tile sizes, how a
weight is packed, and so on. A *decision* is a rule with a plan for a problem.

Rules stand in one ordered ``Registry``, the most specific first. For a problem the first rule that
matches and expects to be worthwhile decides, with its default plan; a tuned table may name another
matching rule and another plan. The tuner walks from decision to decision through
``Registry.neighbours`` and knows no rule by name.

How one problem becomes a kernel:

1. The legalisation recognises an operator call, makes its problem, asks ``Registry.decide``,
   packs the constant weight by ``rule.pack`` and emits ``rule.reference``: the plain computation
   over the packed weight. Its block carries a note (``Note``) with the decision.
2. TVM fuses the operators that follow into the same function.
3. The scheduler reads the note back with ``decision_of`` and has ``rule.write`` write the
   loops.

In between, the decision is a block annotation that TVM's passes keep; only this file writes and
reads it. Nothing here imports TVM, so that plans can be read and checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from collage_engine.support.errors import ToolchainError
from collage_engine.support.typed import convert, decode

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Record = dict[str, Any]
"""A problem's sizes or a plan's parameters as JSON values, by name."""


class PlanError(ToolchainError):
    """A plan or its record is not one of the rule's, or cannot be followed for the problem."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters by which a rule writes a kernel; each rule has a frozen struct of its own.

    Fields are numbers, truth values or one of some literal texts; ranges stand in their types. A
    field whose default is ``None`` is one that the rule estimates itself when it writes; such
    fields are left out of records. msgspec checks what is read from a record.
    """

    def to_record(self) -> Record:
        """Return the parameters as JSON values, without those that the rule estimates itself."""
        record: Record = msgspec.to_builtins(self)
        return record

    @property
    def name(self) -> str:
        """Returns the parameters in alphabetical order, which tell two plans of a rule apart."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.to_record().items()))


class NoPlan(Plan, frozen=True):
    """The plan of a rule that has nothing to choose."""


def workload_of(problem: Any, machine: Any) -> str:
    """Return a line of text that equal problems on as many threads share, in every process."""

    def text(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    sizes = (f"{name} {text(value)}" for name, value in msgspec.structs.asdict(problem).items())
    return f"{type(problem).__name__}: {', '.join(sizes)}, threads {machine.threads}"


ProblemT = TypeVar("ProblemT")
PlanT = TypeVar("PlanT", bound=Plan)
MachineT = TypeVar("MachineT")


# Rules ---------------------------------------------------------------------------------------


class KernelRule(ABC, Generic[ProblemT, PlanT, MachineT]):
    """A rule is one method of writing kernels for one kind of problem on one kind of machine.

    ``machine`` is what the method needs to know of the processor or device: vector width,
    registers, caches, threads (``target.Cpu``), or a GPU's architecture. A rule holds no state and
    no figure of one particular machine.
    """

    name: ClassVar[str]
    """The name by which kernels of this rule are marked, and by which records name the rule."""
    problem_type: ClassVar[type]
    """The class of the problems that the rule writes kernels for: a struct of sizes, whose tag,
    ``family``, says in records what kind it is. ``multiply_adds`` says how many products are added
    up, ``operands(random)`` gives random operands, unpacked, for trying kernels."""
    plan_type: ClassVar[type[Plan]]
    """``problem_type`` and ``plan_type``: the first two parameters of this class in a rule."""

    def __init_subclass__(cls) -> None:
        """Read the classes of problems and plans off the parameters that a rule gives."""
        super().__init_subclass__()
        for base in cls.__orig_bases__:  # type: ignore[attr-defined]
            if get_origin(base) is KernelRule:
                cls.problem_type, cls.plan_type, _ = get_args(base)

    @abstractmethod
    def matches(self, problem: ProblemT, machine: MachineT) -> bool:
        """Tells whether the rule can write a kernel for the problem at all.

        Args:
            problem: A problem of the class ``problem_type``.
            machine: The processor or device on which the kernel is to run.
        """

    def worthwhile(self, problem: ProblemT, machine: MachineT) -> bool:
        """Tells whether the rule expects to be faster than the matching rules behind it.

        It is asked only of rules that match. Without tuning, the first worthwhile rule of the
        registry writes the kernel.
        """
        return True

    @abstractmethod
    def default(self, problem: ProblemT, machine: MachineT) -> PlanT:
        """Return the plan that the rule's own cost model prefers."""

    def neighbours(self, problem: ProblemT, plan: PlanT, machine: MachineT) -> Iterator[PlanT]:
        """Yield plans that differ from ``plan`` in one respect, those that matter most first.

        This is the rule's tuning space: the tuner tries what is yielded here and goes on from what
        is faster.

        Args:
            problem: The problem whose kernel is tuned.
            plan: The plan to differ from.
            machine: The processor or device on which the kernel is to run.

        Yields:
            Plans that suit the sizes and fit the registers: what the tuner may choose. A rule
            without a tuning space yields none.
        """
        return iter(())

    def pack(
        self, problem: ProblemT, plan: PlanT, machine: MachineT, weight: np.ndarray
    ) -> np.ndarray:
        """Return a constant operand in the order in which the kernel reads it.

        Args:
            problem: The problem whose kernel is written.
            plan: The plan that the kernel follows; the order may depend on it.
            machine: The processor or device on which the kernel is to run.
            weight: The operand in the layout of the model, for example [output channels, input
                channels of a group, kernel rows, kernel columns].

        Returns:
            The packed operand; the weight itself where a rule packs nothing.
        """
        return weight

    @abstractmethod
    def reference(self, problem: ProblemT, plan: PlanT, *operands: Any) -> Any:
        """Return the plain computation over packed operands as TE: the kernel's specification.

        The block that adds up carries the decision as a note.
        """

    @abstractmethod
    def write(self, problem: ProblemT, plan: PlanT, epilogue: Any) -> Any:
        """Return the loops of the kernel as a TIR statement.

        Args:
            problem: The problem, as the note on the block has it.
            plan: One of the rule's plans. One that does not fit the registers is slow, not wrong.
            epilogue: What is done with each finished element, with the operands' buffers and the
                context in which the kernel is written.
        """


@dataclass(frozen=True)
class Decision(Generic[ProblemT, PlanT]):
    """A rule and the plan by which it writes the kernel of a problem."""

    rule: KernelRule[ProblemT, PlanT, Any]
    problem: ProblemT
    plan: PlanT

    @property
    def name(self) -> str:
        """Returns the rule's name and the plan's; equal for equal kernels of the same problem."""
        return f"{self.rule.name}: {self.plan.name}"

    def to_record(self) -> Record:
        """Return the choice as JSON values: the rule's name beside the plan's parameters."""
        return {RULE: self.rule.name, **self.plan.to_record()}

    def pack(self, machine: Any, weight: np.ndarray) -> np.ndarray:
        """Return the weight as the kernel reads it."""
        return self.rule.pack(self.problem, self.plan, machine, weight)

    def reference(self, *operands: Any) -> Any:
        """Return the plain computation over packed operands."""
        return self.rule.reference(self.problem, self.plan, *operands)

    def write(self, epilogue: Any) -> Any:
        """Return the kernel's loops."""
        return self.rule.write(self.problem, self.plan, epilogue)


RULE = "rule"
"""Key of a choice's record under which the rule's name stands; no plan has such a parameter."""


class Registry:
    """The registry of all rules in the order in which they are asked, the most specific first."""

    def __init__(self, rules: Iterable[KernelRule[Any, Any, Any]]) -> None:
        self._rules = tuple(rules)
        self._by_name = {rule.name: rule for rule in self._rules}
        if len(self._by_name) < len(self._rules):
            raise ValueError("two kernel rules have one name")

    def rule(self, name: str) -> KernelRule[Any, Any, Any]:
        """Return the rule of that name.

        Raises:
            PlanError: There is none.
        """
        rule = self._by_name.get(name)
        if rule is None:
            raise PlanError(f"there is no kernel rule {name!r}")
        return rule

    def matching(self, problem: Any, machine: Any) -> list[KernelRule[Any, Any, Any]]:
        """Return all rules that can write the problem's kernel, in order."""
        return [
            rule
            for rule in self._rules
            if type(problem) is rule.problem_type and rule.matches(problem, machine)
        ]

    def default(self, problem: Any, machine: Any) -> Decision[Any, Any] | None:
        """Return what is done without tuning: the first worthwhile rule with its default plan.

        Args:
            problem: What is to be computed.
            machine: Where.

        Returns:
            The decision, by the last matching rule where none expects to be worthwhile; None where
            no rule matches.
        """
        rules = self.matching(problem, machine)
        if not rules:
            return None
        first = next((r for r in rules if r.worthwhile(problem, machine)), rules[-1])
        return Decision(first, problem, first.default(problem, machine))

    def decide(
        self, problem: Any, machine: Any, record: Mapping[str, Any] | None = None
    ) -> Decision[Any, Any] | None:
        """Return the decision of a tuned choice's record; the default without a record.

        Raises:
            PlanError: The record names no rule that matches, or its plan cannot be followed.
        """
        if not record:
            return self.default(problem, machine)
        parameters = dict(record)
        rule = self.rule(str(parameters.pop(RULE, "")))
        if rule not in self.matching(problem, machine):
            raise PlanError(f"the kernel rule {rule.name!r} does not match {problem}")
        try:
            plan = convert(parameters, rule.plan_type)
        except msgspec.ValidationError as error:
            raise PlanError(f"no plan of the kernel rule {rule.name!r}: {error}") from error
        return Decision(rule, problem, plan)

    def neighbours(
        self, decision: Decision[Any, Any], machine: Any
    ) -> Iterator[Decision[Any, Any]]:
        """Yield the rule's other plans, then the defaults of the other rules that match."""
        rule, problem = decision.rule, decision.problem
        for plan in rule.neighbours(problem, decision.plan, machine):
            yield Decision(rule, problem, plan)
        for other in self.matching(problem, machine):
            if other is not rule:
                yield Decision(other, problem, other.default(problem, machine))

    def problem(self, record: Mapping[str, Any]) -> Any:
        """Return the problem of a record, whichever of the rules' kinds it is.

        Raises:
            msgspec.ValidationError: No rule has such problems.
        """
        return convert(record, reduce(or_, {rule.problem_type for rule in self._rules}))


ANNOTATION = "collage"
"""Name of the annotation on a TIR block under which the decision stands: the project's own."""


class Note(msgspec.Struct, frozen=True):
    """A block's annotation names a rule and holds the records of its problem and plan."""

    rule: str
    problem: Record
    plan: Record


def note(rule: KernelRule[Any, Any, Any], problem: Any, plan: Plan) -> dict[str, str]:
    """Return the annotation for the block that adds up, for ``te.compute(attrs=…)``."""
    written = {"rule": rule.name, "problem": problem, "plan": plan}
    return {ANNOTATION: msgspec.json.encode(written, order="sorted").decode()}


def read_note(annotations: Mapping[str, Any]) -> Note | None:
    """Return the note among a block's annotations, if there is one."""
    return decode(str(annotations[ANNOTATION]), Note) if ANNOTATION in annotations else None


def decision_of(note: Note, rule: KernelRule[Any, Any, Any]) -> Decision[Any, Any]:
    """Return the decision that a note of this rule stands for."""
    problem: Any = convert(note.problem, rule.problem_type)
    return Decision(rule, problem, convert(note.plan, rule.plan_type))
