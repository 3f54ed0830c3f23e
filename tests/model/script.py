"""Scripts of random histories: what cache is opened, and the steps taken with it. Plain data.

A step is a verb and four dice. What the dice mean depends on what there is when the step is taken, so
that any steps left out of a script still make one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from banyankv import CacheConfig

from .engine import config_of, dispatch_mode, model_of


class Step(NamedTuple):
    """One thing that happens: a verb of `Player`, and dice from 0 to 63."""

    verb: str
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0


@dataclass(frozen=True)
class Script:
    """A whole history: a cache, then its steps; `seed` gives the order of tasks."""

    kinds: tuple[str, ...]
    page: int = 4
    window: int = 8
    chunk: int = 8
    pages: int = 24
    slots: int = 6
    host: int = 64
    store: bool = False
    dispatch: str = "direct"
    seed: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def crashes(self) -> bool:
        """Whether anything crashes on purpose."""
        return any(step.verb in ("crash", "amid", "doom") for step in self.steps)

    @property
    def object_tokens(self) -> int:
        """Tokens of an object of the store: two pages, so that short prompts make several."""
        return 2 * self.page

    def config(self) -> CacheConfig:
        """The cache that the history is about."""
        kinds = self.kinds
        model = model_of(
            self.page,
            window=self.window if "swa" in kinds else 0,
            chunk=self.chunk if "chunked" in kinds else 0,
            sink=self.window if "sink" in kinds else 0,
            states="mamba" in kinds,
        )
        room = {c.name: self.slots if c.rule == "mamba" else self.pages for c in model.components}
        lower = self.host if "l2" in kinds else None
        return config_of(model, room, lower, dispatch=self.dispatch)


MODELS = (
    (),
    ("swa",),
    ("mamba",),
    ("swa", "mamba"),
    ("chunked",),
    ("swa", "chunked", "mamba"),
    ("sink",),
    ("sink", "mamba"),
)

LOWER = ((), ("l2",), ("l2", "store"))

ALWAYS = {"turn": 4, "start": 2, "acquire": 4, "extend": 2, "publish": 2, "release": 5}
MOODS: dict[str, dict[str, int]] = {
    "tight": {
        "extend": 4,
        "crowd": 3,
        "start": 4,
        "jump": 4,
        "cancel": 2,
        "hurry": 4,
        "evict": 1,
        "batch": 1,
    },
    "copies": {
        "stall": 4,
        "one": 5,
        "unstall": 3,
        "demote": 5,
        "evict": 2,
        "cancel": 1,
        "hurry": 1,
    },
    "store": {
        "restart": 4,
        "spoil": 4,
        "hold": 3,
        "free": 4,
        "harm": 1,
        "heal": 1,
        "demote": 4,
        "evict": 3,
    },
    "decode": {"draft": 6, "decode": 5, "keep": 5, "try_acquire": 2, "batch": 1, "flush": 1},
}
"""How often each verb comes, always and in each mood; a history has one mood or all of them."""

CRASH = {"crash": 6, "amid": 6, "jump": 2, "crowd": 2, "stall": 1, "unstall": 1}
"""What a history with crashes has besides, whatever its mood."""


def script_of(seed: int, only: str | None = None, crashes: float = 0.3) -> Script:
    """Make the history of a seed; `only` fixes its model, written as `swa+mamba+l2+store`.

    `crashes` is the chance that actors crash in it.
    """
    dice = random.Random(seed)
    kinds = dice.choice(MODELS) + dice.choice(LOWER) if only is None else tuple(only.split("+"))
    store = "store" in kinds and "sink" not in kinds
    able = [mood for mood in MOODS if mood not in ("copies", "store") or "l2" in kinds]
    if not store:
        able = [mood for mood in able if mood != "store"]
    moods = [dice.choice(able)] if dice.random() < 0.7 else able
    weights = dict(ALWAYS)
    for mood in moods:
        for verb, weight in MOODS[mood].items():
            if dice.random() < 0.8:  # what is left out makes room for what is not
                weights[verb] = weights.get(verb, 0) + weight
    crashing = dice.random() < crashes
    if crashing:
        weights = {verb: weights.get(verb, 0) + CRASH.get(verb, 0) for verb in (*weights, *CRASH)}
    verbs = ["turn"] * 3  # something to meet
    verbs += dice.choices(list(weights), list(weights.values()), k=dice.choice((9, 21, 45)))
    if crashing and dice.random() < 0.1:
        verbs.append("doom")
    page = dice.choice((1, 2, 4, 4, 16))
    tight = "tight" in moods or dice.random() < (0.5 if crashing else 0.3)
    return Script(
        kinds=kinds,
        page=page,
        window=max(1, page * dice.choice((1, 2, 3, 5)) + dice.choice((-1, 0, 1))),
        chunk=max(2, page * dice.choice((1, 2, 3, 4)) + dice.choice((-1, 0, 0, 1))),
        pages=dice.choice((8, 12, 16) if tight else (24, 60)),
        slots=dice.choice((1, 2, 3, 6) if tight else (6, 16)),
        host=dice.choice((8, 16, 64, 256, 256)),
        store=store,
        dispatch=dispatch_mode() or dice.choice(("direct", "direct", "direct", "mailbox")),
        seed=seed,
        steps=tuple(Step(verb, *(dice.randrange(64) for _ in range(4))) for verb in verbs),
    )
