"""The Tinker API through its own client, against a small server that trains for real: both learners do the same."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import toy
from pivotrl.errors import ConfigError, MissingError, ServerError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.tinker import TinkerLearner
from pivotrl.learners.torch import TorchLearner
from pivotrl.models import ModelSettings, load_model
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import load_policy
from pivotrl.policies.tinker import TinkerPolicy, read_spec
from pivotrl.policies.torch import TorchPolicy
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig, preset
from pivotrl.types import SamplingParams, TrainingExample
from tiny import desk_candidates, saved_model

pytest.importorskip("tinker", reason="the extra `tinker` is not installed")
os.environ["TINKER_TELEMETRY"] = "0"  # which its client would send at exit, when the server is gone
from fake_tinker import FakeTinker

PLAIN = ModelSettings()
LR = OptimizerSettings(lr=3e-3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("tinker") / "base", seed=1, chatty=False)


@pytest.fixture(params=["sum", "mean"])
def server(request: pytest.FixtureRequest, directory: Path):
    with FakeTinker(directory, request.param) as fake:
        yield fake


@pytest.fixture
def adding(directory: Path):
    with FakeTinker(directory) as fake:
        yield fake


def spec_of(server: FakeTinker) -> str:
    return f"tinker:{server.base}@{server.url}?reduction={server.reduction}&rank=8"


def learner_of(server: FakeTinker, loss, settings: OptimizerSettings = LR) -> TinkerLearner:
    start = load_policy(spec_of(server), PLAIN)
    assert isinstance(start, TinkerPolicy)
    return TinkerLearner(start, settings, loss)


def stored_batch(directory: Path, *, drift: float) -> list[TrainingExample]:
    """Groups of 4 actions of 1 to 6 tokens by the model of `directory`; pi_old drifts from it by up to that much."""
    policy, reference = TorchPolicy(load_model(str(directory), PLAIN)), TorchPolicy(load_model(str(directory), PLAIN))
    with torch.no_grad():
        for parameter in reference.loaded.model.parameters():
            parameter.mul_(1.1)
    states = [candidate.state for candidate in desk_candidates()[:3]]
    random, examples = torch.Generator().manual_seed(5), []
    for number, answer in enumerate(policy.sample(states, n=4, params=SamplingParams(max_new_tokens=6), seed=3)):
        for index, completion in enumerate(answer.completions):
            shift = (2 * torch.rand(len(completion.token_ids), generator=random) - 1) * drift
            assert completion.token_logprobs is not None
            old = tuple((torch.tensor(completion.token_logprobs) + shift).tolist())
            examples.append(
                TrainingExample(
                    group_id=str(number),
                    prompt_ids=answer.prompt_ids,
                    action_ids=completion.token_ids,
                    advantage=(1.5, -0.5, -1.0, 0.0)[index],
                    loss_mask=tuple(place != 1 or index != 2 for place in range(len(completion.token_ids))),
                    sampler_logprobs=completion.token_logprobs,
                    old_logprobs=old,
                )
            )
    known = reference.logprobs(examples)
    return [replace(example, reference_logprobs=row) for example, row in zip(examples, known, strict=True)]


@pytest.mark.parametrize(
    ("loss", "drift"),
    [
        (LossSettings(beta=0), 0.69),
        (LossSettings(beta=0, reduction="sequence", clip_low=0.1, clip_high=0.3), 0.69),
        (LossSettings(beta=0.5, kl="k1"), 0.0),
        (LossSettings(beta=0.5, kl="k2"), 0.0),
        (LossSettings(beta=0.5, kl="k3", reduction="sequence"), 0.0),
        ("imitation", 0.0),
    ],
)
def test_both_learners_agree_on_the_same_batch(server: FakeTinker, directory: Path, loss, drift: float):
    examples = stored_batch(directory, drift=drift)
    assert len({len(example.action_ids) for example in examples}) > 1
    here, there = TorchLearner(load_model(str(directory), PLAIN), LR), learner_of(server, loss)
    mine, theirs = here.forward_backward(examples, loss), there.forward_backward(examples, loss)
    names = ("loss", "reward_loss", "clip_fraction", "tokens") + ("ratio_mean",) * (loss != "imitation")
    for name in names:
        assert getattr(theirs, name) == pytest.approx(getattr(mine, name), abs=1e-3), name
    assert theirs.sampler_gap == pytest.approx(0, abs=1e-3)
    if loss != "imitation" and loss.beta:
        assert mine.kl is not None
        assert theirs.kl == pytest.approx(mine.kl, abs=1e-3)
        assert mine.kl > 1e-2
    elif drift:
        assert mine.clip_fraction > 0.05
    gradients = server.gradients()
    for name, parameter in here.loaded.model.named_parameters():
        assert parameter.grad is not None
        assert gradients[name] == pytest.approx(parameter.grad, abs=1e-4 * float(parameter.grad.norm()) + 1e-7), name
    assert there.optim_step() == pytest.approx(here.optim_step(), rel=1e-3)
    after = [there.policy().logprobs(examples), here.policy().logprobs(examples)]
    for theirs_row, mine_row in zip(*after, strict=True):
        assert theirs_row == pytest.approx(mine_row, abs=1e-3)
    assert after[0][0] != pytest.approx(examples[0].sampler_logprobs, abs=1e-3)


def test_the_hosted_losses_are_the_documented_ones(adding: FakeTinker, directory: Path):
    examples = stored_batch(directory, drift=0.1)
    learner_of(adding, "imitation").forward_backward(examples, "imitation")
    loss = LossSettings(beta=0)
    learner_of(adding, loss).forward_backward(examples, loss)
    fresh = [replace(example, old_logprobs=None) for example in examples]
    learner_of(adding, loss).forward_backward(fresh, loss)
    assert adding.losses == ["cross_entropy", "ppo", "importance_sampling"]


def test_samples_carry_what_the_learner_needs(server: FakeTinker, directory: Path):
    policy = load_policy(spec_of(server), PLAIN)
    assert isinstance(policy, TinkerPolicy)
    here = TorchPolicy(load_model(str(directory), PLAIN))
    states = [candidate.state for candidate in desk_candidates()[:3]]
    params = SamplingParams(max_new_tokens=5)
    answers = policy.sample(states, n=4, params=params, seed=1)
    assert answers == policy.sample(states, n=4, params=params, seed=1)
    assert answers != policy.sample(states, n=4, params=params, seed=2)
    examples, known = [], []
    for state, answer in zip(states, answers, strict=True):
        assert answer.prompt_ids == policy.chat.prompt_ids(state)
        assert len(answer.prompt_ids) == policy.count_tokens(state)
        for one in answer.completions:
            ended = one.token_ids[-1] in policy.chat.stop_ids
            assert one.finish_reason == ("stop" if ended else "length")
            assert one.text == policy.chat.text_of(one.token_ids)
            example = TrainingExample(
                group_id="",
                prompt_ids=answer.prompt_ids,
                action_ids=one.token_ids,
                advantage=1.0,
                loss_mask=(True,) * len(one.token_ids),
            )
            examples.append(example)
            known.append(pytest.approx(one.token_logprobs, abs=1e-4))
    assert policy.logprobs(examples) == known
    assert here.logprobs(examples) == known
    greedy = SamplingParams(max_new_tokens=5, temperature=0)
    theirs = [answer.completions[0] for answer in policy.sample(states, n=1, params=greedy, seed=0)]
    mine = [answer.completions[0] for answer in here.sample(states, n=1, params=greedy, seed=0)]
    assert [one.token_ids for one in theirs] == [one.token_ids for one in mine]
    assert {one.token_logprobs for one in theirs} == {None}
    assert policy.last([math.nan, -1.0, -2.0], 2) == (-1.0, -2.0)
    for row in ([-1.0], [None, -1.0], [math.nan, -1.0], [-1.0, -math.inf]):
        with pytest.raises(ServerError, match="1 log-probabilities came for 2 tokens"):
            policy.last(row, 2)


@pytest.mark.parametrize("server", ["mean"], indirect=True)
def test_learns(server: FakeTinker):
    """Reward 1 for an even first token, as in test_learns; weights are handed to the sampler once a step."""
    loss = LossSettings(beta=0)
    learner = learner_of(server, loss, OptimizerSettings(lr=1e-2))
    states = [candidate.state for candidate in desk_candidates()[:4]]
    curve: list[float] = []
    for step in range(8):
        examples, seen = [], []
        answers = learner.policy().sample(states, n=8, params=SamplingParams(max_new_tokens=1), seed=step)
        for index, answer in enumerate(answers):
            rewards = [float(completion.token_ids[0] % 2 == 0) for completion in answer.completions]
            seen += rewards
            for completion, advantage in zip(answer.completions, advantages(rewards, AdvantageSettings()), strict=True):
                assert advantage is not None
                example = TrainingExample(
                    group_id=str(index),
                    prompt_ids=answer.prompt_ids,
                    action_ids=completion.token_ids,
                    advantage=advantage,
                    loss_mask=(True,),
                    sampler_logprobs=completion.token_logprobs,
                )
                examples.append(example)
        result = learner.forward_backward(examples, loss)
        assert result.sampler_gap is not None
        assert result.sampler_gap < 1e-3
        learner.optim_step()
        curve.append(sum(seen) / len(seen))
    assert 0.3 < curve[0] < 0.7
    assert sum(curve[-3:]) / 3 > 0.9
    assert server.saves == len(curve)


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(adding: FakeTinker, directory: Path, tmp_path: Path):
    loss, examples = LossSettings(beta=0), stored_batch(directory, drift=0.1)
    learner = learner_of(adding, loss)
    for _ in range(2):
        learner.forward_backward(examples, loss)
        learner.optim_step()
    learner.save(tmp_path / "checkpoint", optimizer=True)
    resumed = learner_of(adding, loss)
    resumed.load_optimizer(tmp_path / "checkpoint")
    for one in (learner, resumed):
        one.forward_backward(examples, loss)
        one.optim_step()
    assert resumed.policy().logprobs(examples) == learner.policy().logprobs(examples)
    learner.save(tmp_path / "model", optimizer=False)
    trained = load_policy(str(tmp_path / "model"), PLAIN)
    assert isinstance(trained, TinkerPolicy)
    assert trained.logprobs(examples) == learner.policy().logprobs(examples)
    with pytest.raises(MissingError, match="no optimiser"):
        resumed.load_optimizer(tmp_path / "model")


def test_the_whole_chain(adding: FakeTinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Profile, select, train with a reference, go on, and evaluate the base against what was trained."""
    monkeypatch.chdir(tmp_path)
    toy.write_episodes(tmp_path / "episodes.jsonl", 12, 0)
    (tmp_path / "judge.py").write_text("def half(candidate, action):\n    return len(action.text or '') % 2\n")
    ingest(IngestConfig(paths=("episodes.jsonl",), run=Path("run")))
    short = SamplingParams(max_new_tokens=4)
    policy = spec_of(adding)
    profile(ProfileConfig(run=Path("run"), policy=policy, rollouts=4, verifier="judge.py:half", sampling=short))
    select(SelectConfig(run=Path("run"), lambda_diff=1.0))
    first = TrainConfig(run=Path("run"), steps=2, prompts=2, group_size=4, checkpoint_every=1, optimizer=LR)
    assert len(train(first).metrics) == 2
    result = train(replace(first, steps=3))
    assert [one.step for one in result.metrics] == [0, 1, 2]
    assert len(adding.models) == 2
    steps = [one.learner for one in result.metrics if one.learner]
    assert steps
    assert all(one.kl is not None and one.sampler_gap is not None and one.sampler_gap < 1e-3 for one in steps)
    assert evaluate(
        EvaluateConfig(
            run=Path("run"),
            policies=(f"base={policy}", "mine=train/pivotrl"),
            split="train",
            verifier="judge.py:half",
            sampling=SamplingChoice(max_new_tokens=4),
        )
    ).lines()


def test_what_cannot_work_is_said_in_one_line(
    server: FakeTinker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    start = load_policy(spec_of(server), PLAIN)
    assert isinstance(start, TinkerPolicy)
    for ratio in ("action", "gspo"):
        with pytest.raises(ConfigError, match=f"ratio {ratio}"):
            TinkerLearner(start, LR, LossSettings(ratio=ratio))
    with pytest.raises(ConfigError, match="no such bound"):
        TinkerLearner(start, LR, LossSettings(dual_clip=3.0))
    for loss in (LossSettings(sampler_weight_cap=2.0), preset("nemo-rl", tmp_path).loss):
        with pytest.raises(ConfigError, match=r"--loss\.sampler-weight-cap None"):
            TinkerLearner(start, LR, loss)
    assert TinkerLearner(start, LR, replace(preset("nemo-rl", tmp_path).loss, sampler_weight_cap=None))
    start.spec = replace(start.spec, path="tinker://run0/sampler_weights/x")
    with pytest.raises(ConfigError, match="leave path out"):
        TinkerLearner(start, LR, "imitation")
    start.spec = replace(start.spec, path=None)
    assert not server.models
    other = "sum" if server.reduction == "mean" else "mean"
    wrong = load_policy(spec_of(server).replace(f"={server.reduction}", f"={other}"), PLAIN)
    assert isinstance(wrong, TinkerPolicy)
    examples = stored_batch(directory, drift=0.0)
    with pytest.raises(ConfigError, match=f"add reduction={server.reduction}"):
        TinkerLearner(wrong, LR, "imitation").forward_backward(examples, "imitation")
    with pytest.raises(ConfigError, match="does not serve"):
        load_policy(f"tinker:{saved_model(tmp_path / 'other')}@{server.url}", PLAIN)
    (tmp_path / "tinker.json").write_text(
        f'{{"weights": {{"base": "{server.base}", "url": "{server.url}"}}, "state": "x"}}'
    )
    with pytest.raises(ServerError, match="nothing was saved"):
        TinkerLearner(start, LR, "imitation").load_optimizer(tmp_path)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set TINKER_API_KEY"):
        load_policy(f"tinker:{directory}", PLAIN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write tinker:BASE"),
        ("m?colour=red", "unknown option colour"),
        ("m?rank=large", "rank"),
        ("m?rank=²", "rank"),
        ("m?reduction=max", "reduction"),
    ],
)
def test_bad_names(text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        read_spec(text)


def test_names():
    spec = read_spec("org/name@http://host:1/x?rank=8&reduction=mean&path=tinker://a/b/c")
    assert (spec.base, spec.url, spec.rank, spec.reduction) == ("org/name", "http://host:1/x", 8, "mean")
    assert spec.path == "tinker://a/b/c"
    assert read_spec("org/name").url is None


def test_nothing_of_it_is_imported_before_it_is_used():
    code = "import sys, pivotrl.policies.tinker, pivotrl.learners, pivotrl.training; sys.exit('tinker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
