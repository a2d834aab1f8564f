"""The grids of `pivotrl lab run`: which cells the tables of docs/reproduction.md are made of. Pure data.

A cell is one training of one seed, or the base model, and where it is measured. Its key is the hash of its settings,
so that grids share cells, and a run goes on wherever it was left. Settings are chosen by the grid `tune`, on validation
tasks and seeds of its own, with as many trials for every method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Final, Literal, NamedTuple

from pivotrl.errors import ConfigError
from pivotrl.lab.demonstration import PROMPTS
from pivotrl.pivots import SelectConfig
from pivotrl.storage import content_hash
from pivotrl.types import Split

GridName = Literal["quick", "tune", "table1", "table2", "table4", "figure1", "ablations", "threshold"]
TUNING_SEED: Final = 100
"""The first of the seeds that settings are chosen on; no table is measured on them."""
THRESHOLD_SEED: Final = 200
"""The first of the grid `threshold`, and of no other: it tries what the others' seeds suggested."""
TEMPERATURES: Final[Mapping[str, float]] = {"greedy": 0.0, "sampled": 1.0}
GROUP: Final = 8
EPISODE_PROMPTS: Final = 8
"""Tasks in a batch of end-to-end training."""
STEPS: Final = (10, 20, 30, 40)
EPISODE_STEPS: Final = (5, 10, 15, 20)
"""After these steps of end-to-end training success is measured; with them it samples about as many turns as `pivotrl`
and its profile do at STEPS."""
RATES: Final = (1e-4, 2e-4, 4e-4, 8e-4)
BETAS: Final = (0.01, 0.1)
SFT_RATES: Final = (6e-5, 2e-4, 6e-4, 2e-3)
EPOCHS: Final = (1, 3)
HORIZONS: Final = ("desk-short", "desk", "desk-long")
LAMBDA: Final = SelectConfig(run="").lambda_diff
"""The paper's."""
ALL_MIXED: Final = "pivotrl, lambda 1"
"""PivotRL that leaves out no state whose rewards differ; its settings are chosen by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is made, sampled and played in every cell."""

    episodes: int = 120
    """Expert episodes."""
    profiled: int = 2000
    """At most so many states are profiled; of 120 episodes that is every turn of the train split."""
    rollouts: int = 8
    """K: actions sampled at each of them."""
    tasks: int = 200
    """Held-out tasks played at each temperature."""
    skills: int = 504
    """Questions of the eight general skills."""
    shrink: int = 1
    """Every number of steps is divided by this; epochs are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is chosen for a method."""

    lr: float
    beta: float = 0.0
    epochs: int = 0
    """sft: passes over the demonstrations, in place of steps."""


Chosen = dict[str, dict[str, Setting]]
"""By domain and kind of method (`Cell.kind`: sft, pivotrl, e2e). The other horizons of the desk have the desk's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the cells of a run directory have in common; it is held to all but `chosen`."""

    chosen: Chosen
    sizes: Sizes = field(default_factory=Sizes)
    base: str = ""
    """Another model than the domain's own."""
    text: str = ""
    """A text whose perplexity is measured before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training, or the base model (method `base`), or what actions really lead to (method `truth`)."""

    domain: str
    seed: int
    method: str
    setting: Setting
    sizes: Sizes
    split: Split = "test"
    steps: tuple[int, ...] = ()
    """After these, success is measured: with sampled actions, and after the last one all that is to be measured."""
    data: str = "profile"
    prompts: int = PROMPTS
    group: int = GROUP
    lambda_diff: float = LAMBDA
    rule: str = "paper"
    verifier: str = ""
    """The domain's own where empty."""
    again: bool = False
    """Profile once more half-way, with what is trained by then."""
    temperatures: tuple[str, ...] = tuple(TEMPERATURES)
    base: str = ""
    text: str = ""

    @property
    def key(self) -> str:
        return f"{self.domain}-{self.seed:03d}-{self.method}-{content_hash(self)}"

    @property
    def kind(self) -> str:
        """What settings are chosen for."""
        return self.method if self.lambda_diff == LAMBDA else f"{self.method}, lambda {self.lambda_diff:g}"

    @property
    def profiles(self) -> bool:
        """Whether it needs a profile."""
        return self.method not in ("base", "truth", "sft", "e2e") or self.data == "pivots"


class Entry(NamedTuple):
    """A row of a table, and its cell of one seed."""

    row: str
    cell: Cell


def _base(domain: str, seed: int, plan: Plan) -> Cell:
    return Cell(
        domain=domain,
        seed=seed,
        method="base",
        setting=Setting(lr=0.0),
        sizes=plan.sizes,
        base=plan.base,
        text=plan.text,
    )


def _trained(domain: str, seed: int, plan: Plan, method: str = "pivotrl", setting: Setting | None = None) -> Cell:
    """A training with the settings chosen for its kind of method, unless others are given."""
    kind = method if method in ("sft", "e2e") else "pivotrl"
    steps = {"sft": (), "e2e": EPISODE_STEPS, "pivotrl": STEPS if domain in HORIZONS else STEPS[-1:]}[kind]
    cell = replace(
        _base(domain, seed, plan),
        method=method,
        setting=setting or chosen(plan, domain, kind),
        steps=tuple(max(1, step // plan.sizes.shrink) for step in steps),
    )
    if method == "sft":
        return replace(cell, data="train")
    return replace(cell, prompts=EPISODE_PROMPTS) if method == "e2e" else cell


def _all_mixed(domain: str, seed: int, plan: Plan, setting: Setting | None = None) -> Cell:
    setting = setting or chosen(plan, domain, ALL_MIXED)
    return replace(_trained(domain, seed, plan, setting=setting), steps=_last(plan), lambda_diff=1.0)


def chosen(plan: Plan, domain: str, kind: str) -> Setting:
    """Raises ConfigError where nothing was chosen."""
    for name in (domain, "desk" if domain in HORIZONS else domain):
        if kind in plan.chosen.get(name, {}):
            return plan.chosen[name][kind]
    raise ConfigError(f"no settings are chosen for {kind} in {domain}; run `pivotrl lab run --grid tune` first")


def trials(kind: str) -> list[Setting]:
    """The settings that one is chosen from: eight for every method."""
    if kind == "sft":
        return [Setting(lr=lr, epochs=epochs) for lr, epochs in product(SFT_RATES, EPOCHS)]
    return [Setting(lr=lr, beta=beta) for lr, beta in product(RATES, BETAS)]


def frontier(domain: str) -> list[Setting]:
    """The settings of SFT that test tasks are played with: all on the desk; elsewhere one epoch, for time's sake."""
    return [setting for setting in trials("sft") if domain == "desk" or setting.epochs == 1]


def setting_name(kind: str, setting: Setting) -> str:
    return f"{kind} lr {setting.lr:g} " + (f"epochs {setting.epochs}" if kind == "sft" else f"beta {setting.beta:g}")


def _quick(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    yield Entry("base", _base(domain, seed, plan))
    yield Entry("sft", _trained(domain, seed, plan, "sft"))
    yield Entry("pivotrl", _trained(domain, seed, plan))


def _table1(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    yield from _quick(domain, seed, plan)
    for setting in frontier(domain):
        yield Entry(setting_name("sft", setting), _trained(domain, seed, plan, "sft", setting))


def _table4(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    yield from _quick(domain, seed, plan)
    for method in ("unfiltered", "strict-filtered", "strict"):
        yield Entry(method, replace(_trained(domain, seed, plan, method), steps=_last(plan)))
    if domain == "desk":
        yield Entry("truth", replace(_base(domain, seed, plan), method="truth", temperatures=()))


def _figure1(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    yield Entry("base", _base(domain, seed, plan))
    yield Entry("pivotrl", _trained(domain, seed, plan))
    yield Entry("e2e", _trained(domain, seed, plan, "e2e"))


def _ablations(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    full = _trained(domain, seed, plan)
    yield Entry("pivotrl", full)
    one = replace(full, steps=_last(plan), temperatures=("sampled",))
    last, sizes = one.steps[-1], plan.sizes
    more = replace(sizes, episodes=4 * sizes.episodes, profiled=4 * sizes.profiled)
    for row, cell in {
        **{f"lambda {value:g}": replace(one, lambda_diff=value) for value in (0.3, 1.0)},
        **{f"K {k}": replace(one, sizes=replace(sizes, rollouts=k)) for k in (4, 16)},
        **{f"G {group}": replace(one, group=group) for group in (4, 16)},
        **{f"beta {beta:g}": replace(one, setting=replace(one.setting, beta=beta)) for beta in (0.0, 0.5)},
        **{f"rule {rule}": replace(one, rule=rule) for rule in ("posterior", "signal")},
        "batch 4": replace(one, prompts=4, steps=(last * PROMPTS // 4,)),
        "batch 4, unfiltered": replace(one, prompts=4, steps=(last * PROMPTS // 4,), method="unfiltered"),
        "batch 64": replace(one, prompts=64, steps=(max(1, last * PROMPTS // 64),)),
        "profiled again half-way": replace(one, again=True),
        "verifier exact everywhere": replace(one, verifier="exact"),
        "verifier auto": replace(one, verifier="auto"),
        "rft": replace(one, method="rft"),
        "sft on pivots": replace(one, method="sft", data="pivots"),
        "four times the data": replace(one, sizes=more),
        "four times the data, sft": replace(_trained(domain, seed, plan, "sft"), temperatures=("sampled",), sizes=more),
    }.items():
        yield Entry(row, cell)


def _threshold(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    yield from _quick(domain, seed, plan)
    yield Entry(ALL_MIXED, _all_mixed(domain, seed, plan))
    yield Entry("unfiltered", replace(_trained(domain, seed, plan, "unfiltered"), steps=_last(plan)))


def _tune(domain: str, seed: int, plan: Plan) -> Iterator[Entry]:
    quiet = replace(plan.sizes, skills=0)
    for kind in ("sft", "pivotrl", "e2e", ALL_MIXED) if domain == "desk" else ("sft", "pivotrl"):
        for setting in trials(kind):
            made = _all_mixed if kind == ALL_MIXED else partial(_trained, method=kind)
            cell = made(domain, seed, plan, setting=setting)
            cell = replace(cell, split="validation", steps=cell.steps[-1:], sizes=quiet)
            yield Entry(setting_name(kind, setting), cell)


def _last(plan: Plan) -> tuple[int, ...]:
    return (max(1, STEPS[-1] // plan.sizes.shrink),)


class Grid(NamedTuple):
    """Its domains, and its rows in one of them."""

    domains: tuple[str, ...]
    rows: Callable[[str, int, Plan], Iterator[Entry]]


_BOTH: Final = ("desk", "shell")
GRIDS: Final[Mapping[GridName, Grid]] = {
    "quick": Grid(("desk",), _quick),
    "tune": Grid(_BOTH, _tune),
    "table1": Grid(_BOTH, _table1),
    "table2": Grid(_BOTH, _table1),
    "table4": Grid(("desk",), _table4),
    "figure1": Grid(HORIZONS, _figure1),
    "ablations": Grid(("desk",), _ablations),
    "threshold": Grid(("desk",), _threshold),
}
"""table2 reads the skills of the cells of table1."""


def first_seed(grid: GridName) -> int:
    return {"tune": TUNING_SEED, "threshold": THRESHOLD_SEED}.get(grid, 0)


def is_seed_of(grid: GridName, seed: int) -> bool:
    """Whether the grid's table may be made of it."""
    return (seed >= THRESHOLD_SEED) == (grid == "threshold")


def entries(grid: GridName, seeds: Sequence[int], plan: Plan, domains: Sequence[str] = ()) -> list[tuple[str, Entry]]:
    """(domain, row and cell) of a grid: seed by seed, so that what was run first is whole."""
    return [
        (domain, entry)
        for seed in seeds
        for domain in domains or GRIDS[grid].domains
        for entry in GRIDS[grid].rows(domain, seed, plan)
    ]
