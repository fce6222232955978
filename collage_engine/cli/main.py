"""``collage``: reads the arguments, calls the service in process, prints what it answers.

Progress goes to standard error, results to standard output. Exit status: 0 done, 1 the work
failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

from collage_engine.cli.parser import build_parser
from collage_engine.records.versions import __version__
from collage_engine.support.errors import CollageError

_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit status."""
    try:
        # Imported here so that `collage --help` and usage errors come at once.
        options = build_parser().parse_args(arguments)
        from collage_engine.cli import commands, output
        from collage_engine.cli.screen import prepare
        from collage_engine.machine import logs

        prepare()
        if options.command != "serve":  # the server configures its own
            logs.configure(getattr(options, "verbose", 0))
        _LOG.info("collage %s, version %s", options.command, __version__)
        try:
            status = commands.COMMANDS[options.command](options)
        except CollageError as error:
            status = output.report_error(error, options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); nothing more can be said to it.
        _forget_output()
        return 1
    except OSError as error:
        _forget_output()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except Exception as error:
        _LOG.exception("a defect ended the command")
        kind = type(error).__name__
        return _fail(f"a defect of Collage Explorer: {kind}: {error} (-v shows where)")


def _fail(text: str, status: int = 1) -> int:
    from collage_engine.cli.screen import complain

    complain(f"collage: {text}")
    return status


def _forget_output() -> None:
    """Send what is left for standard output nowhere, since it cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
