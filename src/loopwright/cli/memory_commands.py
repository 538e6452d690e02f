"""`loopwright plans`: what this machine remembers of plans, and why; forget it."""

import json
import textwrap
from datetime import datetime
from typing import Annotated, Any

import typer

from loopwright.cli.arguments import AsJson
from loopwright.errors import ConfigurationError, message, printable
from loopwright.plans import memory, settings_memory
from loopwright.plans.memory import Entry

_COLUMNS = 80
_ID_LENGTH = 12
_OFF = 'nothing is remembered: LOOPWRIGHT_CACHE_DIR="" switches the memory off'


def plans(
    forget: Annotated[
        str | None,
        typer.Option(
            metavar="ID|all", help="Forget one choice (the start of its ID suffices), or all."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the remembered choices of plans and their evidence, or forget them.

    The next run of a forgotten program measures again. Runs that have begun follow their record.
    """
    place = memory.cache_directory()
    if place is None and not as_json and forget in (None, "all"):
        typer.echo(_OFF)
        return
    known = memory.entries()
    if forget is not None:
        for identity in _named(forget, known):
            _forget(identity)
            settings_memory.forget(identity)
            entry = known[identity]
            lines = _wrapped(f"forgotten  {identity[:_ID_LENGTH]}  ", entry.title if entry else "")
            typer.echo("\n".join(lines))
        return
    if as_json:
        plain = {i: None if entry is None else entry.content() for i, entry in known.items()}
        typer.echo(json.dumps(plain, indent=2))
        return
    if not known:
        typer.echo(f"nothing is remembered in {place}")
        return
    for identity, entry in known.items():
        typer.echo("\n".join(_described(identity, entry)))
    typer.echo(f"{len(known)} in {place}")


def _forget(identity: str) -> None:
    try:
        memory.forget(identity)
    except OSError as error:
        raise ConfigurationError(
            message(
                f"{identity[:_ID_LENGTH]} cannot be forgotten.",
                expected=f"a file that can be deleted in {memory.cache_directory()}",
                received=f"{type(error).__name__}: {error.strerror}",
                do="delete it yourself, or set LOOPWRIGHT_CACHE_DIR to a directory of your own",
            )
        ) from None


def _named(wanted: str, known: dict[str, Any]) -> list[str]:
    """Return the entries that an ID names: one by its first characters, or all of them."""
    if wanted == "all":
        return list(known)
    found = [identity for identity in known if wanted and identity.startswith(wanted)]
    if len(found) == 1:
        return found
    ids = ", ".join(identity[:_ID_LENGTH] for identity in (found or known)) or "nothing remembered"
    raise ConfigurationError(
        message(
            f"{wanted!r} names {len(found) or 'no'} remembered choice{'s' if found else ''}.",
            expected="the first characters of one ID, or all",
            received=f"{wanted!r}, where the IDs are {ids}" if known else f"{wanted!r}, {ids}",
            do="copy an ID from `loopwright plans`, or use --forget all",
        )
    )


def _described(identity: str, entry: Entry | None) -> list[str]:
    """Return the lines about one entry, each at most as wide as a terminal."""
    short = printable(identity[:_ID_LENGTH])
    if entry is None:
        return [f"{short}  damaged or of another version, will be measured again", ""]
    kind = "complete" if entry.is_complete else "partial, the next run continues"
    date = datetime.fromtimestamp(entry.date).strftime("%Y-%m-%d %H:%M")
    load = f"{entry.load:.1f} processes ready per core"
    rows = [
        ("plan", entry.choice.plan.in_words),
        ("why", entry.choice.why),
        *(("tried", f"{one.plan.in_words}: {one.in_words}{_cost(one)}") for one in entry.tried),
        ("when", f"{date}, {load}, Loopwright {entry.version}"),
        ("state", kind),
        ("file", f"{identity}.json"),
    ]
    lines = _wrapped(f"{short}  ", entry.title or "no title")
    for name, text in rows:
        lines += _wrapped(f"  {name:6}", text)
    return [*lines, ""]


def _cost(one: memory.Tried) -> str:
    if one.state != "measured":
        return ""
    compiled = f", compiled in {one.compile_seconds:.1f} s" if one.compile_seconds else ""
    return f", {one.steps:,} steps{compiled}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text).replace("\n", " "),
        _COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
    ) or [head.rstrip()]
