"""What the commands share: their options, exit codes, and how exceptions become messages."""

from __future__ import annotations

import errno
import pathlib
import re
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import click

from llmc2py.diagnostics import Llmc2pyError

#: The exit code where differences, failures or errors in the source were found.
FOUND = 1
_MISUSED = 2
_BUG = 70
_AS_JSON = "llmc2py.json"
_DEBUG = "llmc2py.debug"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Misuse(click.ClickException):
    """An error as the user sees it: its message on the standard error, and in JSON where that was asked for."""

    exit_code = _MISUSED

    def __init__(self, message: str, *, as_json: bool) -> None:
        super().__init__(message)
        self._as_json = as_json

    def show(self, file: Any = None) -> None:
        """Write the message."""
        from llmc2py.console import write_error, write_json

        write_error(f"llmc2py: error: {self.message}")
        if self._as_json:
            write_json({"error": self.message})


class _Bug(_Misuse):
    """An exception that nobody foresaw."""

    exit_code = _BUG


class Commands(click.Group):
    """Turns exceptions into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Raises ClickException for whatever it raises."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output has left: click ends quietly
            if ctx.meta.get(_DEBUG):
                traceback.print_exc()
            raise _failure(error, as_json=ctx.meta.get(_AS_JSON, False)) from error


def _failure(error: Exception, *, as_json: bool) -> _Misuse:
    from llmc2py.runtime.errors import ToolMissingError

    if isinstance(error, (Llmc2pyError, ToolMissingError)):
        return _Misuse(str(error), as_json=as_json)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "please report it with the command and the output of the same command with --debug"
    return _Bug(f"a bug in llmc2py ({what}); {hint}", as_json=as_json)


def _note(key: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Return a callback that keeps a flag where the group finds it when a command fails."""

    def callback(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta[key] = ctx.meta.get(key, False) or value
        return value

    return callback


debug_option = click.option(
    "--debug", is_flag=True, envvar="LLMC2PY_DEBUG", expose_value=False, is_eager=True, callback=_note(_DEBUG),
    help="Show the traceback of an error (also LLMC2PY_DEBUG=1).",
)  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_note(_AS_JSON),
    help="Write one JSON object to the standard output instead of tables.",
)  # fmt: skip
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Say more.")
PATH = click.Path(path_type=pathlib.Path)
catalog_option = click.option(
    "--catalog", "catalogs", multiple=True, type=PATH, metavar="FILE",
    help="A catalogue entry (TOML) beyond the built-in ones and those in SOURCE; may be given several times.",
)  # fmt: skip


def only_option(what: str) -> Callable[[_Command], _Command]:
    """Return the option that chooses by patterns; ``what`` is chosen."""
    return click.option(
        "--only", multiple=True, metavar="GLOB", help=f"Only {what} that match; may be given several times."
    )


def check_architectures(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the architectures, each once. Raises BadParameter for what is not named like one."""
    for name in given:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", name):
            raise click.BadParameter(f"{name} is no architecture; they are named like sm_90")
    return tuple(dict.fromkeys(given))
