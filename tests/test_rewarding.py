"""A verifier as TRL's reward function: what it reads from ids is what a rollout is, and TRL 1.16 itself calls it."""

from __future__ import annotations

import pytest

from pivotrl.errors import InputError
from pivotrl.exports.trainers import trl_reward
from pivotrl.policies.torch import TorchPolicy
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.types import SamplingParams
from pivotrl.verifiers.plugin import PluginVerifier
from tiny import desk_candidates, loaded_model

PARAMS = SamplingParams(max_new_tokens=12)


def word_count(candidate, action):
    """Differs between the actions of an untrained model, and fails at some."""
    words = len((action.text or "").split())
    return None if words % 4 == 3 else (words + candidate.turn) % 5 / 4


JUDGE = PluginVerifier("word_count", "1", word_count)


@pytest.fixture(scope="module")
def loaded():
    return loaded_model(seed=3)


@pytest.fixture(scope="module")
def groups(loaded):
    """What `profile` would store at twelve states: whole, truncated and unparsable actions."""
    sampling = Sampling(policy=TorchPolicy(loaded), verifier=JUDGE, params=PARAMS, n=16, seed=0)
    return sample_groups(sampling, desk_candidates()[:12])


def by_id():
    return {candidate.id: candidate for candidate in desk_candidates()}


def test_ids_are_read_as_the_policy_reads_them(loaded, groups):
    reasons = set()
    for group in groups:
        state = by_id()[group.candidate_id].state
        for completion in group.completions:
            ours = loaded.chat.completion(completion.token_ids, state)
            for name in ("action", "text", "finish_reason", "token_ids", "parse_error"):
                assert getattr(ours, name) == getattr(completion, name)
            padded = loaded.chat.completion((*completion.token_ids, 5, 6, 7), state)
            assert completion.truncated or padded == ours, "what follows the stop token is no part of the action"
            reasons.add(completion.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("truncation", ["zero", "exclude"])
def test_rewards_are_those_of_the_profile(loaded, groups, truncation):
    reward = trl_reward(JUDGE, desk_candidates(), loaded.chat, truncation=truncation)
    for group in groups:
        ids = [list(completion.token_ids) for completion in group.completions]
        got = reward(completion_ids=ids, candidate_id=[group.candidate_id] * len(ids), prompts=[], other=[1])
        truncated = [completion.truncated for completion in group.completions]
        expected = [
            None if cut and truncation == "exclude" else r for cut, r in zip(truncated, group.rewards, strict=True)
        ]
        assert got == expected
    assert None in [value for group in groups for value in group.rewards]


def test_an_unknown_candidate_is_one_line(loaded):
    reward = trl_reward(JUDGE, desk_candidates()[:1], loaded.chat)
    with pytest.raises(InputError, match="candidate 'x@1' is not among"):
        reward(completion_ids=[[1]], candidate_id=["x@1"])


def test_trl_trains_with_it_on_the_ids_of_our_own_prompts(tmp_path):
    """Two steps of GRPOTrainer: it samples at our prompts, asks our function, and takes floats and None."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: `make dev` installs it")
    from datasets import Dataset

    loaded, rows = loaded_model(seed=3), []
    for candidate in desk_candidates()[:8]:
        ids = loaded.chat.prompt_ids(candidate.state)
        text = loaded.chat.tokenizer.decode(ids, skip_special_tokens=False)
        rows.append({"prompt": text, "candidate_id": candidate.id})
    reward, calls = trl_reward(JUDGE, desk_candidates(), loaded.chat), []

    def recorded(**columns):
        calls.append((columns, reward(**columns)))
        return calls[-1][1]

    settings = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=96,
        max_steps=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = trl.GRPOTrainer(
        model=loaded.model,
        reward_funcs=recorded,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.chat.tokenizer,
    )
    seen, tokenize = [], trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda prompts: (seen.append((prompts, tokenize(prompts))), seen[-1][1])[1]
    trainer.train()
    assert trainer.state.global_step == 2
    texts = {row["prompt"]: row["candidate_id"] for row in rows}
    for prompts, (ids, *_) in seen:
        ours = [loaded.chat.prompt_ids(by_id()[texts[prompt]].state) for prompt in prompts]
        assert [tuple(row) for row in ids] == ours
    values = [value for _, rewards in calls for value in rewards]
    assert len(values) == 32
    assert None in values
    assert len(set(values)) > 3
