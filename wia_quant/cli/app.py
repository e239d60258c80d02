# SPDX-License-Identifier: Apache-2.0
"""The command ``wia-quant``: the table of commands, and the only place that prints an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import typer

import wia_quant
from wia_quant.cli import output, overwriting
from wia_quant.cli.baseline import baseline
from wia_quant.cli.bench import bench
from wia_quant.cli.calibrate import calibrate
from wia_quant.cli.check import check
from wia_quant.cli.demo import demo
from wia_quant.cli.devices import devices
from wia_quant.cli.doctor import doctor
from wia_quant.cli.evaluate import evaluate
from wia_quant.cli.export import export
from wia_quant.cli.inspect import inspect
from wia_quant.cli.regress import regress
from wia_quant.cli.report import report
from wia_quant.cli.run import run
from wia_quant.errors import WiaError

#: Every command; the order is that of ``--help``. A new one is one file and one line here.
COMMANDS: Final = MappingProxyType[str, Callable[..., None]](
    {
        "demo": demo,
        "export": export,
        "calibrate": calibrate,
        "run": run,
        "evaluate": evaluate,
        "report": report,
        "baseline": baseline,
        "regress": regress,
        "check": check,
        "doctor": doctor,
        "bench": bench,
        "inspect": inspect,
        "devices": devices,
    }
)

#: What a shell reports for a program that SIGINT ended.
INTERRUPTED: Final = 130

# click's base of usage errors; some versions of typer carry a copy of click, so it is reached through typer.
_ClickException = cast(type[Exception], typer.BadParameter.__mro__[2])


def _version(asked: bool) -> None:
    if asked:
        output.show_line(f"wia-quant {wia_quant.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Quantize ONNX models for WIA-AI-011 accelerators and run them in exact int8.

    Exit codes: 0 done, 1 failed, 2 wrong usage. Results go to stdout, progress and errors to stderr.
    """


def build() -> typer.Typer:
    """The typer application that COMMANDS describes."""
    app = typer.Typer(
        name="wia-quant",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name, function in COMMANDS.items():
        app.command(name, cls=overwriting.Command)(function)
    return app


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Every error of ours becomes one line on stderr."""
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        # Not command.main(): that would turn Ctrl-C into an exit code without a word.
        command = typer.main.get_command(build())
        with command.make_context("wia-quant", rest or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except _ClickException as failure:
        if debug:
            traceback.print_exc()
        usage: Any = failure  # see above
        output.error(usage.format_message())
        return 2
    except WiaError as failure:
        if debug:
            traceback.print_exc()
        output.error(str(failure))
        return failure.exit_code
    except (KeyboardInterrupt, typer.Abort) as stop:
        if debug:
            traceback.print_exc()
        hint = str(stop) or "nothing was overwritten; run the same command again"
        output.say(f"interrupted: {hint}")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; the interpreter must not complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MemoryError, OSError) as failure:
        if debug:
            traceback.print_exc()
        output.error(str(failure) or type(failure).__name__)
        return 1
    except Exception as failure:  # what no part of this program expected: a fault in it, said in one line
        if debug:
            traceback.print_exc()
        text = " ".join(str(failure).split())
        output.error(f"internal fault, {type(failure).__name__}: {text}; --debug shows where, please report it")
        return 1


def main() -> None:
    """The entry point of the console script."""
    sys.exit(invoke(sys.argv[1:]))
