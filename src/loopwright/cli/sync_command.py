"""`loopwright sync`: send to a tracker what it misses of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.arguments import RunDirectory
from loopwright.config.names import TRACKERS
from loopwright.errors import ConfigurationError, LoopwrightError, first_line, message, printable

if TYPE_CHECKING:
    from loopwright.sinks.delivery import Service, Status

_STATUS: "dict[str, Status]" = {"completed": "completed", "failed": "failed"}
_PLACES = {"mlflow": "tracking_uri", "wandb": "entity"}
"""The option that a run directory may not decide: where to send to."""


def sync(
    run: RunDirectory,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Address of the tracker, for example tracking_uri=http://..."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TRACKER",
            help="mlflow or wandb.",
            show_default="those that the run was trained with",
        ),
    ] = None,
) -> None:
    """Send to a tracker what it misses of a run: numbers, parameters, files.

    Asks the tracker what it has, and sends the rest from the journal of the run.
    """
    from loopwright import runs
    from loopwright.checkpoints import lock
    from loopwright.sinks.tracked_run import addresses

    if to is not None and to not in TRACKERS:
        raise ConfigurationError(
            message(
                "Unknown tracker.",
                expected=" or ".join(TRACKERS),
                received=repr(to),
                do="choose one of these with --to",
            )
        )
    status = _STATUS.get(str(runs.open(run).status.get("status")), "interrupted")
    known = {name: addresses(run, name) for name in TRACKERS if to in (None, name)}
    if to is None and not any(known.values()):
        raise ConfigurationError(
            message(
                f"{run} was trained without a tracker.",
                expected="--to mlflow, or --to wandb",
                received="no --to",
                do="name the tracker, and its address if it is not the default one",
            )
        )
    given = _parsed(options or [])
    with lock.held(run / lock.NAME):
        for name, recorded in known.items():
            found = [_service(run, name, a, given) for a in recorded or ([{}] if to else [])]
            same = {str(s.address): s for s in found if dict(s.address) in recorded}
            for service in same.values() or found[:1]:
                _send(run, service, status)


def _parsed(words: list[str]) -> dict[str, Any]:
    from loopwright.config.file import from_command_line

    return {".".join(path): value for path, value in from_command_line(words)}


def _service(run: Path, tracker: str, recorded: dict[str, str], given: dict[str, Any]) -> "Service":
    """Return the place that the user names, or the recorded one if it is the user's default."""
    from loopwright.sinks.mlflow_tracker import MLflowService
    from loopwright.sinks.wandb_tracker import WandBService

    place = _PLACES[tracker]
    chosen = {key: value for key, value in recorded.items() if key != place} | given
    kind, keys = (
        (MLflowService, ("tracking_uri", "experiment", "run_name"))
        if tracker == "mlflow"
        else (WandBService, ("project", "entity", "run_name", "mode"))
    )
    unknown = [key for key in chosen if key not in keys]
    if unknown:
        raise ConfigurationError(
            message(
                f"Unknown options of {tracker}.",
                expected=", ".join(keys),
                received=", ".join(unknown),
                do="leave them out",
            )
        )
    service = kind(*(chosen.get(key) for key in keys))
    if place not in given and recorded and dict(service.address) != recorded:
        raise ConfigurationError(
            message(
                f"{run} was sent to an address that a run directory may not decide.",
                expected=f"{place}={recorded.get(place)}, if you know and trust this address",
                received=f"no {place}, which means {service.address.get(place)}",
                do=f"name the address: loopwright sync {run} {place}={recorded.get(place)}",
            )
        )
    return service


def _send(run: Path, service: "Service", status: "Status") -> None:
    from loopwright.sinks.delivery import Delivery, in_words
    from loopwright.sinks.tracked_run import TrackedRun

    tracked = TrackedRun(run, service.tracker, service.address)
    artifacts, running = tracked.wanted
    delivery = Delivery(tracked, artifacts, running, status=status, journal_bytes=None)
    try:
        delivery.deliver(service)
    except LoopwrightError:
        raise
    except Exception as error:
        raise LoopwrightError(
            message(
                f"{in_words(service)} cannot be reached.",
                expected="a tracker that answers",
                received=first_line(error),
                do="run the same command again when it is back; nothing is lost or sent twice",
            )
        ) from None
    points = delivery.sent_points
    done = f"sent {points:,} points" if points else "has every point"
    typer.echo(printable(f"{in_words(service)}: {done}"))
