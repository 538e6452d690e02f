"""A plan: how steps are compiled, looped and fed, as a value.

    lw.Trainer(task)                                          # "auto": measured while it trains
    lw.Trainer(task, plan="eager")                            # breakpoints and prints work
    lw.Trainer(task, plan=lw.Plan(step="xla", loop="fused"))  # the loop itself inside XLA

Every run starts with `Plan(step="graph", loop="graph")`, many steps in one call of TensorFlow's own
executor, unless another plan is given.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from loopwright.errors import ConfigurationError

_COMBINATIONS = (
    ("eager", "python"),
    ("graph", "python"),
    ("graph", "graph"),
    ("xla", "python"),
    ("xla", "graph"),
    ("xla", "fused"),
)
Rewrite = Literal["threefry", "recurrent"]
REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)
_FEEDS = (None, "resident", "stream", "chunk")
_STEP_WORDS = {"eager": "Python step", "graph": "graph step", "xla": "XLA step"}
_LOOP_WORDS = {"python": "one call per step", "graph": "graph loop", "fused": "loop inside XLA"}
_FEED_WORDS = {
    "resident": "arrays on the device",
    "stream": "batches from an iterator",
    "chunk": "batches in chunks",
}


@dataclass(frozen=True)
class Plan:
    """How a step is run: how it is compiled, what loops around it, where batches come from."""

    step: Literal["eager", "graph", "xla"] = "graph"
    loop: Literal["python", "graph", "fused"] = "graph"
    """One call per step, a loop around the step, or the loop itself inside XLA."""
    feed: Literal["resident", "stream", "chunk"] | None = None
    """Gathered from arrays on the device, read from an iterator one by one, or several at a time.
    None: chosen by the kind of data."""
    rewrites: tuple[Rewrite, ...] | None = None
    """What is changed while a step is traced for XLA. None: all that apply on this machine.
    "threefry": the algorithm that random numbers are drawn by. "recurrent": LSTM and GRU layers
    with their large matrix products outside of the loop over time."""

    def __post_init__(self) -> None:
        if self.step != "xla" and self.rewrites is None:
            # One form of each plan, so that equal plans compare equal.
            object.__setattr__(self, "rewrites", ())
        if not (
            (self.step, self.loop) in _COMBINATIONS
            and self.feed in _FEEDS
            and _are_rewrites(self.rewrites, self.step)
        ):
            plans = [f"Plan(step={step!r}, loop={loop!r})" for step, loop in _COMBINATIONS]
            feeds = " or ".join(repr(feed) for feed in _FEEDS if feed)
            raise ConfigurationError(
                "Unknown plan.",
                expected=f"{' or '.join(plans)}, with feed={feeds} or none; with step='xla' "
                f"also rewrites={REWRITES!r}, part of it in this order, or none",
                received=repr(self),
                do='leave it out, or use plan="eager" for debugging',
            )

    def __repr__(self) -> str:
        fields = f"step={self.step!r}, loop={self.loop!r}, feed={self.feed!r}"
        left_out = None if self.step == "xla" else ()
        if self.rewrites != left_out:
            fields += f", rewrites={self.rewrites!r}"
        return f"Plan({fields})"

    def __str__(self) -> str:
        word = next((word for word, plan in WORDS.items() if plan == self), None)
        return repr(self) if word is None else repr(word)

    @property
    def in_words(self) -> str:
        """The plan in words: `loop inside XLA, arrays on the device`."""
        parts = [] if self.loop == "fused" else [_STEP_WORDS[self.step]]
        parts.append(_LOOP_WORDS[self.loop])
        return ", ".join(parts + ([_FEED_WORDS[self.feed]] if self.feed else []))


def _are_rewrites(given: object, step: str) -> bool:
    if not isinstance(given, tuple):
        return given is None
    known = tuple(name for name in REWRITES if name in given) if step == "xla" else ()
    return given == known


WORDS = {
    "graph": Plan("graph", "graph"),
    "eager": Plan("eager", "python"),
    "xla": Plan("xla", "graph"),
    "fused": Plan("xla", "fused"),
}


def plan_of(plan: Plan | str) -> Plan:
    """Return a plan, given as a plan or by name.

    >>> plan_of("fused")
    Plan(step='xla', loop='fused', feed=None)
    """
    if isinstance(plan, Plan):
        return plan
    if plan not in WORDS:
        words = " or ".join(map(repr, ["auto", *WORDS]))
        raise ConfigurationError(
            f"Unknown plan {plan!r}.",
            expected=f"{words}, a Plan(...), a plan history, or the path of a plan.json",
            received=repr(plan),
            do="leave it out, or use one of the names above",
        )
    return WORDS[plan]


@dataclass(frozen=True)
class Terms:
    """What the task and its data require of a plan."""

    batches: Literal["none", "memory", "pipeline", "python"]
    """None; from arrays in memory; from a tf.data pipeline; made one by one in Python."""
    plain: bool = True
    """Whether batches are dense tensors of numbers."""
    replicas: int = 1
    # A digest of the repr identifies a kind of step in records made before there were rewrites;
    # the devices and versions that these follow from are in the digest too.
    rewrites: tuple[Rewrite, ...] = field(default=(), repr=False)
    """Those that apply on this machine."""


def objection(plan: Plan, terms: Terms) -> tuple[str, Plan] | None:
    """Return why a plan cannot be used, and the nearest one that may; None if it can.

    >>> objection(WORDS["fused"], Terms("python"))[0]
    'a loop inside XLA needs its batches in advance, and Python makes them one by one'
    """
    without_feed = replace(plan, feed=None)
    if plan.step == "xla" and terms.replicas > 1:
        return "XLA does not run a step on several replicas", WORDS["graph"]
    if plan.step == "xla" and not terms.plain:
        reason = "XLA takes dense numbers only: no strings, no sparse or ragged tensors"
        return reason, WORDS["graph"]
    if not set(plan.rewrites or ()) <= set(terms.rewrites):
        reason = f"of the rewrites for XLA, those that apply on this machine are {terms.rewrites!r}"
        return reason, replace(plan, rewrites=None)
    if plan.loop == "fused" and terms.batches == "python":
        reason = "a loop inside XLA needs its batches in advance, and Python makes them one by one"
        return reason, replace(WORDS["xla"], rewrites=plan.rewrites)
    if plan.loop == "fused" and plan.feed == "stream":
        return "a loop inside XLA cannot read from an iterator", without_feed
    if plan.feed is not None and terms.batches == "none":
        return "there is no data to feed", without_feed
    if plan.feed == "resident" and (terms.batches != "memory" or plan.loop == "python"):
        return (
            "only arrays can be kept on the device as a whole, for loops that gather",
            without_feed,
        )
    if plan.feed == "chunk" and plan.loop == "python":
        return "a call for each step takes one batch, not a chunk of them", without_feed
    if plan.feed == "chunk" and (terms.batches == "python" or not terms.plain):
        return "chunks are stacked from dense batches of a tf.data pipeline", without_feed
    return None


def nearest(plan: Plan, terms: Terms) -> Plan:
    """Return the plan, or the nearest one that can be used."""
    while (objected := objection(plan, terms)) is not None:
        _, plan = objected
    return plan


def settled(plan: Plan, terms: Terms) -> Plan:
    """Return the plan with its feed and rewrites set, where they were left to data and machine.

    >>> settled(WORDS["fused"], Terms("pipeline", rewrites=("threefry",)))
    Plan(step='xla', loop='fused', feed='chunk', rewrites=('threefry',))
    """
    if plan.rewrites is None:
        plan = replace(plan, rewrites=terms.rewrites)
    if plan.feed is not None or terms.batches == "none":
        return plan
    if terms.batches == "memory" and plan.loop != "python":
        return replace(plan, feed="resident")
    return replace(plan, feed="chunk" if plan.loop == "fused" else "stream")


def refuse(plan: Plan, terms: Terms) -> None:
    """Raise if a plan cannot be used."""
    objected = objection(plan, terms)
    if objected is not None:
        reason, _ = objected
        raise ConfigurationError(
            f"The plan {plan} cannot run this task: {reason}.",
            expected="a plan that fits the task and its data",
            received=f"plan={plan}",
            do=f"use plan={nearest(plan, terms)}, the nearest that works, or leave it out",
        )
