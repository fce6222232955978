"""Trial jobs for tests of confirmation, importable without TVM's compiler."""

from __future__ import annotations

import os
import signal

from collage_engine.trials.trial_job import OpenPlacement, TrialJob


class CrashesOnLoad(TrialJob):
    """Dies of what a library may do when it loads."""

    def __call__(self, request):
        if isinstance(request, OpenPlacement):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__call__(request)
