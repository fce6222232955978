"""The real measuring job, with toolchains beside the real ones that lie or crash."""

from __future__ import annotations

import os
import signal
from typing import Any

import msgspec

from collage_engine.support.errors import UnsupportedError
from collage_engine.timing.child import OpenRequest
from collage_engine.timing.job import MeasureJob
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from tests.support.plain_toolchain import PlainToolchain


class Liar(PlainToolchain):
    """Right in kind, wrong in number: its functions are called with relu left out."""

    about = msgspec.structs.replace(PlainToolchain.about, name="liar")

    def lower(self, function: Function) -> Any:
        from tvm import relax

        module = super().lower(function)

        @relax.expr_functor.mutator
        class Spoil(relax.PyExprMutator):
            def visit_call_(self, call: Any) -> Any:
                call = self.visit_expr_post_order(call)
                if call.op.name == "relax.call_tir" and "relu" in call.args[0].name_hint:
                    return relax.op.add(call.args[1].fields[0], relax.const(0.25))
                return call

        mutator = Spoil(module)
        module["main"] = mutator.visit_expr(module["main"])
        return relax.transform.LegalizeOps()(module)


class Crasher(PlainToolchain):
    about = msgspec.structs.replace(PlainToolchain.about, name="crasher")

    def lower(self, function: Function) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class Picky(PlainToolchain):
    about = msgspec.structs.replace(PlainToolchain.about, name="picky")

    def lower(self, function: Function) -> Any:
        raise UnsupportedError("picky takes nothing on Saturdays")


class Job(MeasureJob):
    def open(self, request: OpenRequest) -> Any:
        for kind in (PlainToolchain, Liar, Crasher, Picky):
            module = "tests.support.plain_toolchain" if kind is PlainToolchain else __name__
            registry.TOOLCHAINS[kind.about.name] = f"{module}:{kind.__name__}"
        return super().open(request)
