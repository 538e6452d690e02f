"""Count the floating-point operations of a step of each workload."""

from loopwright.insight import flops


def of_workloads(keys: list[str]) -> dict[str, float]:
    """Return the operations of a step of each workload."""
    from benchmarks import models
    from benchmarks.workloads import WORKLOADS, by_hand

    found: dict[str, float] = {}
    for key in keys:
        work = WORKLOADS[key]()
        # The loop of an LSTM is unrolled to be counted: the same products, one by one.
        step = by_hand(lambda: models.lstm(unroll=True), "mse") if key == "lstm" else work.hand_step
        batch = [part[: work.batch_size] for part in (work.x, work.y) if part is not None]
        found[key] = flops.of_step(step(), batch).flops
    return found
