"""What commands share: options, and how fields are named on a command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from h5store.cli.main import debug_option
from h5store.schema import Role

ROLES = tuple(str(role) for role in Role)


def json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")(command)


def role_options(help_text: str) -> Callable[[Any], Any]:
    """--features, --aux, --labels, --weights and --meta, each as often as there are fields."""

    def add(command: Any) -> Any:
        for role in reversed(ROLES):
            command = click.option(f"--{role}", multiple=True, metavar="FIELD", help=help_text if role == "features"
                                   else f"As --features, for {role}.")(command)
        return command

    return add


def pack_options(command: Any) -> Any:
    """The options of every kind of pack."""
    for option in reversed([
        click.option("--codec", default="lz4", show_default=True, metavar="CODEC",
                     help="lz4 (fastest to read), zstd (smallest file), gzip (for tools without plugins), or none; a "
                          "level after a colon, e.g. gzip:9."),
        click.option("--chunk", default="128KiB", show_default=True, metavar="SIZE",
                     help="Size of a chunk, or samples a chunk as a number, or 'random' for uniformly random reading."),
        click.option("--threads", type=click.IntRange(1, 64), help="Threads; all cores by default."),
        click.option("--resume", is_flag=True, help="Go on from an interrupted pack of the same samples."),
        click.option("--overwrite", is_flag=True, help="Replace OUT, once the new one is whole."),
        click.option("--append", is_flag=True, help="Add to the store OUT."),
        click.option("--shuffle", type=click.IntRange(0), metavar="SEED",
                     help="Store samples in a random order; which each was is kept in field 'source_index'."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N samples."),
        click.option("--dry-run", is_flag=True, help="Say what would be packed, and write nothing."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
        json_option, debug_option,
    ]):
        command = option(command)
    return command


def on_error_option(command: Any) -> Any:
    return click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
                        help="Whether files that cannot be packed stop it before anything is written, or are left out "
                             "and listed in OUT.skipped.csv.")(command)


def named_files(role: str, words: Sequence[str]) -> Any:
    """``FILE`` or ``NAME=FILE``: what a role argument takes, field name -> path."""
    out: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or os.path.exists(word):
            name, path = role, word
        if name in out:
            raise click.UsageError(f"--{role}: two fields are named {name!r}; name them: --{role} NAME={path}")
        out[name] = path
    return out or None


def named_keys(role: str, words: Sequence[str], *, vectors: bool = False) -> Any:
    """``key``, ``key,key`` or ``NAME=key``: field name -> key; with `vectors`, ``NAME=key,key`` is one field."""
    out: dict[str, Any] = {}
    for word in words:
        name, equals, keys = word.partition("=")
        parts = [key.strip() for key in (keys if equals else word).split(",") if key.strip()]
        if equals and len(parts) != 1 and not (vectors and parts):
            raise click.UsageError(f"--{role} {word}: expected NAME=KEY; give several fields as several options")
        fields = {name.strip(): parts if len(parts) > 1 else parts[0]} if equals else {key: key for key in parts}
        for field, key in fields.items():
            if field in out:
                raise click.UsageError(f"--{role}: two fields are named {field!r}; name one: --{role} NAME={key}")
            out[field] = key
    return out or None


def chunk_of(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text


def codec_of(text: str) -> Any:
    return None if text.lower() == "none" else text


def pairs(what: str, words: Sequence[str]) -> dict[str, str]:
    """``name=value`` words."""
    out = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} {word}: expected NAME=VALUE")
        out[name] = value
    return out


def shape_of(text: str) -> tuple[int, ...]:
    """``28x28`` as (28, 28)."""
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise click.UsageError(f"shape {text!r}: expected whole numbers with an x between, e.g. 28x28") from None


def say(data: Any, as_json: bool, text: str) -> None:
    """The result of a command, on standard output."""
    click.echo(json.dumps(data, ensure_ascii=False) if as_json else text)


def human(size: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
