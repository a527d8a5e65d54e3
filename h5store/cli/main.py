"""The command `h5store`: finds its subcommands, and turns what goes wrong into one line and an exit code.

0: done. 1: it could not be done, and the message says why. 2: the command line is not understood. 130: interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from h5store._version import __version__
from h5store.errors import H5StoreError, nearest
from h5store.storage.opening import journal_path

#: Command -> the module of `h5store.cli` that has it, under its own name. Modules are imported when needed.
COMMANDS = {
    "pack": "pack", "info": "look", "show": "look", "stats": "stats", "split": "divide", "export": "export",
    "verify": "check", "fingerprint": "check", "doctor": "check", "bench": "bench",
}


class Commands(click.Group):
    """A group that knows the nearest spelling of a command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"no command {args[0]!r}; {nearest(args[0], self.list_commands(ctx), 'commands')}",
                                   ctx)
        return super().resolve_command(ctx, args)


class Lazy(Commands):
    """The subcommands of `COMMANDS`, each from its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if self.get_command(ctx, name) is not None]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        where = f"h5store.cli.{COMMANDS.get(name)}"
        if name not in COMMANDS or importlib.util.find_spec(where) is None:
            return None
        return getattr(importlib.import_module(where), name, None)


def debug_option(command: Any) -> Any:
    """Adds --debug to a command. `main` has acted on it before click sees it."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(command)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="h5store")
@debug_option
def h5store() -> None:
    """Pack arrays once into one compressed HDF5 file, train from it as fast as from memory.

    \b
    Example:
      h5store pack arrays train.h5 --features flux=X.npy --labels y.npy
      h5store info train.h5
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given
    with warnings.catch_warnings():
        # For people, not for programmers: no file, no line.
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Note: {_text(message)}", err=True)
        try:
            code = h5store.main(given, "h5store", standalone_mode=False)
        except click.exceptions.Exit as done:
            sys.exit(done.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _say_interrupted(given)
            sys.exit(130)
        except BrokenPipeError:
            # What reads our output has seen enough; Python would complain when it flushes what is left.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (H5StoreError, OSError, ImportError, MemoryError) as error:
            if debug:
                raise
            click.echo(f"Error: {_text(error)}", err=True)
            _say_kept(given)
            sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _text(error: BaseException | str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    # Errors speak of arguments of Python calls; here they are options.
    return re.sub(r"\b(resume|overwrite|append)=True", r"--\1", str(error)) or type(error).__name__


def _journal_of(given: Sequence[str]) -> str | None:
    """The journal that a pack has left, found by the path that the command line names."""
    if not given or "pack" not in given:
        return None
    # A pack that is shuffled may have been interrupted while it was packing in order.
    kept = (path for word in given for path in (journal_path(word), journal_path(f"{word}.unshuffled"),
                                                f"{word}.unshuffled"))
    return next(filter(os.path.exists, kept), None)


def _again(given: Sequence[str]) -> str:
    words = [word for word in given if word not in ("--resume", "--overwrite")]
    return shlex.join(["h5store", *words, "--resume"])


def _say_interrupted(given: Sequence[str]) -> None:
    click.echo("Interrupted.", err=True)
    journal = _journal_of(given)
    if journal:
        click.echo(f"What was committed is safe in {journal}. Go on with:\n  {_again(given)}", err=True)
    elif "pack" in given:
        click.echo("Nothing was committed yet, and nothing is left behind.", err=True)


def _say_kept(given: Sequence[str]) -> None:
    if _journal_of(given):
        click.echo(f"Samples that were committed before are kept. Once that is mended, go on with:\n  {_again(given)}",
                   err=True)
