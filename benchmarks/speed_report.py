"""Write the comparison with the peers as Markdown: rates, ratios, GFLOP/s."""

from collections.abc import Mapping, Sequence

from benchmarks import reports
from benchmarks.outcomes import (
    COLUMNS,
    JAX_SCAN,
    KERAS,
    KERAS_BEST,
    LOOPWRIGHT,
    LOOPWRIGHT_BEST,
    MATMUL,
    PEERS,
    Measured,
    Outcome,
    ratio,
)

HOW_TO_GET_PEERS = "`make bench-peers` installs them."
_LEGEND = (
    "Every contender is a process; they take turns, and each column shows the fastest of its "
    "settings, in brackets. Keras: `steps_per_execution` 1 or 32, as graph or with "
    "`jit_compile=True` (xla). oneDNN: `TF_ENABLE_ONEDNN_OPTS=1`. 1 thread: "
    "`TF_NUM_INTRAOP_THREADS=1`, `OMP_NUM_THREADS=1` (PyTorch), `NPROC=1` (JAX). PyTorch: eager, "
    "channels_last, `torch.compile`, each with the fused Adam. Hand loop: `for batch in dataset` "
    "around a "
    "`tf.function`. JAX scan: an epoch as one `lax.scan` over arrays on the device. Loopwright: "
    "default settings, after its choice; the best fixed choice is the best of all plans, also with "
    "oneDNN where XLA does not compile the step. The last column divides Loopwright by the best of "
    "the columns before JAX scan."
)


def render(
    outcomes: Sequence[Outcome],
    machine: Outcome,
    rounds: int,
    versions: Mapping[str, str],
    missing: Sequence[str] = (),
) -> str:
    """Return the report: rates, ratios, GFLOP/s, the share of the progress bar."""
    heading = f"Steps per second, best of {rounds} interleaved rounds."
    parts = [f"{heading} {reports.measured_on(versions)}", rates(outcomes), _LEGEND]
    if missing:
        parts.append(f"Not measured: {reports.listed(missing)}. {HOW_TO_GET_PEERS}")
    parts += [comparison(outcomes), *operations(outcomes, machine)]
    shares = [(outcome.key, outcome.progress_share) for outcome in outcomes]
    said = [f"{share:.1%} ({key})" for key, share in shares if share is not None]
    if said:
        parts.append(f"The progress bar takes {reports.listed(said)} of a run's time.")
    return "\n\n".join(parts) + "\n"


def rates(outcomes: Sequence[Outcome]) -> str:
    """Return a table of steps per second, with Loopwright relative to its best peer."""
    rows = [
        [
            outcome.name,
            *(_cell(shown(outcome, column)) for column in COLUMNS),
            reports.times(ratio(outcome.rate(LOOPWRIGHT), outcome.rate(*PEERS))),
        ]
        for outcome in outcomes
    ]
    return reports.table(["workload", *COLUMNS, "Loopwright / best peer"], rows)


def comparison(outcomes: Sequence[Outcome]) -> str:
    """Return a table of Loopwright's speed relative to the others."""
    bases = {
        KERAS: (KERAS,),
        "the best peer": PEERS,
        JAX_SCAN: (JAX_SCAN,),
        "its own best fixed choice": (LOOPWRIGHT_BEST,),
    }
    rows = [
        [
            outcome.name,
            *(
                reports.times(ratio(outcome.rate(LOOPWRIGHT), outcome.rate(*columns)))
                for columns in bases.values()
            ),
        ]
        for outcome in outcomes
    ]
    return reports.table(["Loopwright compared with", *bases], rows)


def operations(outcomes: Sequence[Outcome], machine: Outcome) -> list[str]:
    """Return what a step computes, and how near it comes to a large matrix product."""
    best = machine.best(MATMUL)
    counted = [outcome for outcome in outcomes if outcome.step_flops]
    if not counted or best is None or best.best is None or machine.step_flops is None:
        return []
    peak = best.best * machine.step_flops
    rows = [
        [
            outcome.name,
            f"{(outcome.step_flops or 0) / 1e9:.3g}",
            *(
                _reached(outcome, columns, peak)
                for columns in ((LOOPWRIGHT,), (LOOPWRIGHT_BEST,), PEERS)
            ),
        ]
        for outcome in counted
    ]
    header = ["GFLOP/s", "GFLOP a step", LOOPWRIGHT, "best fixed choice", "the best peer"]
    words = (
        f"Operations are those of matrix products and convolutions in the traced step. Brackets: "
        f"share of what a float32 {machine.name} reached in the same run, {peak / 1e9:.0f} GFLOP/s "
        f"({best.setting})."
    )
    return [reports.table(header, rows), words]


def shown(outcome: Outcome, column: str) -> Measured | None:
    """Return the contender that a column shows: Keras as it comes is one of its settings."""
    return outcome.best(KERAS, KERAS_BEST) if column == KERAS_BEST else outcome.best(column)


def _cell(best: Measured | None) -> str:
    if best is None:
        return "-"
    setting = best.setting or ("1 graph" if best.column == KERAS else "")
    return f"{reports.count(best.best)} ({setting})" if setting else reports.count(best.best)


def _reached(outcome: Outcome, columns: tuple[str, ...], peak: float) -> str:
    rate = outcome.rate(*columns)
    if rate is None or outcome.step_flops is None:
        return "-"
    reached = rate * outcome.step_flops
    return f"{reports.count(reached / 1e9)} ({reached / peak:.0%})"
