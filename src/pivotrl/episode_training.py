"""Method e2e: multi-turn GRPO on whole episodes, by the same advantage, loss, learner and ledger as the other methods.

A step takes tasks of an environment's train split. The current policy plays each G times from the initial state, the
outcome is the reward, and Eq. 1 makes of a task's G outcomes the advantage of every turn of an episode. Turns begin
with the turns before them, and the learner forwards what they share once (`prefix_tree`).

Departures from the paper, beside those of `grpo` and `training`:
 1. Eq. 7 is a mean over samples. A sample is an episode here, and each counts once, so that long ones do not weigh
    more: with `reduction="token"` the tokens of an episode share its weight equally, with "sequence" its turns do.
 2. The advantage for malformed actions (`advantage.malformed`) is of the malformed turn alone.
 3. `mask_truncated` keeps truncated turns out of the loss, and all turns of an episode that the turn limit or the
    context cut off; they have no share in the weight of an episode.
 4. Episodes that a failed model call ended are unscored, and no members of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count, groupby, islice
from typing import Final

from pivotrl.environments import tasks_of
from pivotrl.episodes import Arena, Played
from pivotrl.examples import example_of, teaching
from pivotrl.grpo import advantages
from pivotrl.protocols import Policy
from pivotrl.storage import seed_of, shuffle_key
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams, TrainingExample


class TaskData:
    """Tasks of the train split, drawn without replacement, epoch by epoch."""

    store: Final = None
    left_out: Final[dict[str, int]] = {}

    def __init__(self, arena: Arena, config: TrainConfig) -> None:
        """Raises ConfigError where there are not so many tasks."""
        self.arena, self.config = arena, config
        self.rows = tasks_of(arena.environment, "train", config.tasks, config.seed)

    def batch(self, step: int) -> list[str]:
        """The tasks of a step, each at most once."""
        size, seed = min(self.config.prompts, len(self.rows)), self.config.seed
        epochs = (sorted(self.rows, key=lambda task: shuffle_key(f"{seed}/{epoch}/{task}")) for epoch in count())
        return list(dict.fromkeys(islice(chain.from_iterable(epochs), step * size, (step + 1) * size)))

    def play(self, step: int, policy: Policy, params: SamplingParams) -> list[Played]:
        """G episodes of every task of a step."""
        seed = seed_of(f"train/{self.config.seed}/{step}")
        return self.arena.play(policy, params, seed, self.batch(step), self.config.group_size)


def episode_examples(played: Sequence[Played], config: TrainConfig) -> list[TrainingExample]:
    """One example for every turn of every scored episode; none at all where nothing would carry a gradient.

    The episodes of a task are neighbours. Groups whose advantages are all 0 go as in `examples.examples_of`.
    """
    examples: list[TrainingExample] = []
    for _, some in groupby(played, key=lambda one: one.episode.task_id):
        group = list(some)
        advantages_G = advantages([one.episode.reward for one in group], config.advantage)
        scored = [(one, value) for one, value in zip(group, advantages_G, strict=True) if value is not None]
        turns = [turn for one, value in scored for turn in _turns(one, value, config)]
        if config.zero_variance == "keep" or any(turn.advantage for turn in turns):
            examples += sorted(turns, key=lambda turn: turn.prompt_ids)  # equal states are one micro-batch
    return teaching(examples, config)


def _turns(played: Played, advantage: float, config: TrainConfig) -> list[TrainingExample]:
    """The turns of an episode that enter the loss; their weights add up to 1."""
    episode, malformed = played.episode, config.advantage.malformed
    if config.mask_truncated and episode.ending in ("turn_limit", "context_full"):
        return []
    made = [
        example_of(episode.task_id, prompt, turn, malformed if malformed and turn.unparsable else advantage, config)
        for prompt, turn in zip(played.prompts, episode.completions, strict=True)
    ]
    made = [example for example in made if any(example.loss_mask)]
    tokens = sum(len(example.action_ids) for example in made)
    share = tokens if config.loss.reduction == "token" else len(made)
    return [replace(example, weight=1.0 / share) for example in made]
