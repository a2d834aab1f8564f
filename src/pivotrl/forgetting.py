"""What training is not about, before and after: tasks of lm-eval, and how likely a text is; against the first policy.

A text is measured at every token: perplexity is exp of minus the mean log-likelihood, its change that of this mean; KL
(first policy || the other) is over the whole vocabulary, in nats. Its documents are the clusters.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from pivotrl.documents import Block, table_of, to_markdown
from pivotrl.errors import ConfigError, DependencyError, InputError, MissingError, brief
from pivotrl.evaluation_settings import EvaluateConfig, ForgettingSettings, folder_name, inherit, open_policies
from pivotrl.ledger import Ledger, Stopwatch, forward_flops
from pivotrl.logs import say
from pivotrl.metrics import clustered_mean, format_short
from pivotrl.models import LoadedModel
from pivotrl.outcomes import ItemScore
from pivotrl.profile_settings import fingerprint_id
from pivotrl.protocols import Policy
from pivotrl.result_files import lm_eval_rows
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import content_hash, read_jsonl
from pivotrl.task_evaluation import SuccessRate, success_rate
from pivotrl.types import Estimate, Usage

FILE: Final = "forgetting.json"
PAPER: Final = (
    ("IFBench", "NeMo Skills ifbench", "a reader of that harness's results"),
    ("AIME25", "lm-eval aime25", "the paper's prompt and several samples; this is greedy"),
    ("MATH500", "lm-eval hendrycks_math500", "the paper's prompt"),
    ("LiveCodeBench", "NeMo Skills livecodebench", "running its code, a reader of the results"),
    ("SciCode", "NeMo Skills scicode", "running its code, a reader of the results"),
    ("MMLU-Pro", "lm-eval mmlu_pro", "the paper's prompt"),
    ("MMLU-ProX", "lm-eval mmlu_prox_de", "other languages: name mmlu_prox_LANGUAGE besides"),
    ("WMT24++", "NeMo Skills wmt24pp", "the metric's model, a reader of the results"),
)
"""Tables 2 and 3: benchmark, who runs it (lm-eval 0.4.13 where it can), what is missing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingScore:
    """One policy on one suite."""

    policy: str
    suite: str
    rate: SuccessRate
    """Of a text: perplexity, the change of a token's log-likelihood, documents that became more and less likely."""
    kl: Estimate | None = None
    """KL(first policy || this one) per token of the text."""

    @property
    def title(self) -> str:
        return self.suite + (f"; KL to the first policy {format_short(self.kl)} nats per token" if self.kl else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingResult:
    """`forgetting.json` of an evaluation: suite by suite, the policies in their order."""

    scores: tuple[ForgettingScore, ...]

    def lines(self) -> list[str]:
        return to_markdown(self.blocks()).splitlines()

    def changes(self) -> Iterator[tuple[str, str, tuple[Estimate, Estimate], Estimate]]:
        """Suite, policy, before and after, change."""
        before = {one.suite: one.rate.success for one in self.scores if one.rate.change is None}
        for one in self.scores:
            if one.rate.change:
                yield one.title, one.policy, (before[one.suite], one.rate.success), one.rate.change

    def blocks(self) -> list[Block]:
        rows = []
        for one in self.scores:
            change = (
                (format_short(one.rate.change), f"{one.rate.gained}, {one.rate.lost}") if one.rate.change else ("", "")
            )
            rows.append((one.title, one.policy, format_short(one.rate.success), one.rate.success.n, *change))
        return [table_of(["suite", "policy", "score", "n", "change", "gained, lost"], rows)]


def evaluate_forgetting(config: EvaluateConfig, policies: Mapping[str, Policy] | None = None) -> ForgettingResult:
    """`policies` may be given as objects by name. Raises a PivotRLError."""
    run, wanted = RunDirectory(config.run), config.forgetting
    settings, tasks = inherit(config, run), _tasks(wanted)
    documents = _documents(Path(wanted.text)) if wanted.text else []
    items: list[ItemScore] = []
    tokens: dict[str, _Tokens] = {}
    first: LoadedModel | None = None
    for name, open_policy in open_policies(config, run, settings.model, policies).items():
        loaded: LoadedModel | None = getattr(open_policy(), "loaded", None)
        if loaded is None:
            raise ConfigError(f"{name}: --forgetting needs a model whose weights are here")
        watch, usage = Stopwatch(), Usage()
        if documents:
            first = first or loaded
            tokens[name] = np.array([*_read(first, loaded, documents, wanted.tokens)]).reshape(-1, 3)
            readers = {id(one): one.shape for one in (first, loaded)}.values()
            for length in np.bincount(tokens[name][:, 0].astype(int)).tolist():
                for shape in readers:
                    usage += Usage(prefilled_tokens=length, flops=forward_flops(shape, tokens=length))
        if tasks:
            cache = run.evaluation(config.title) / folder_name(name, fingerprint_id(loaded.fingerprint)) / "answers"
            items += _ask(name, loaded, tasks, wanted, cache)
        Ledger(run.ledger).record("evaluate", f"{config.title}/{name}", "all", usage + Usage(seconds=watch.lap()))
        del loaded  # before the next one is opened
    texts = _texts(Path(str(wanted.text)).name, tokens) if documents else ()
    result = ForgettingResult(scores=(*_suites(items), *texts))
    asked = f"lm-eval {version('lm-eval')}, chat {wanted.chat}" if tasks else ""
    versions = {item.suite: asked for item in items}
    facts = {"general": [*versions], "documents": content_hash(documents)}
    settings.keep(config, FILE, result, items, environments=versions, **facts)
    return result


def _tasks(wanted: ForgettingSettings) -> list[str]:
    if wanted.paper:
        say(to_markdown([table_of(["the paper's benchmark", "run by", "missing here"], PAPER)]))
    tasks = [*wanted.lm_eval, *(by[8:] for _, by, _ in PAPER if wanted.paper and by[:8] == "lm-eval ")]
    if tasks and not find_spec("lm_eval"):
        raise DependencyError("tasks of lm-eval need lm-eval; pip install 'pivotrl[eval]'")
    return list(dict.fromkeys(tasks))


def _suites(items: Sequence[ItemScore]) -> Iterator[ForgettingScore]:
    means: dict[str, dict[str, dict[str, float]]] = {}
    for item in items:
        means.setdefault(item.suite, {}).setdefault(item.policy, {})[item.item] = item.mean
    for suite, by_policy in means.items():
        first, *_ = by_policy.values()
        for name, mine in by_policy.items():
            yield ForgettingScore(policy=name, suite=suite, rate=success_rate(mine, None if mine is first else first))


@dataclass(frozen=True, slots=True)
class _Document:
    text: str


_Tokens = np.ndarray[Any, np.dtype[np.float64]]
"""(T, 3): the document, the token's log-likelihood, KL of the distributions that predict it."""


def _documents(path: Path) -> list[str]:
    if path.suffix == ".jsonl":
        return [row.text for row in read_jsonl(path, _Document)]
    if not path.is_file():
        raise MissingError(f"{path}: no such file; check --forgetting.text")
    return re.split(r"\n\s*\n", path.read_bytes().decode(errors="replace"))


def _read(first: LoadedModel, loaded: LoadedModel, documents: Sequence[str], most: int) -> Iterator[list[float]]:
    """The tokens of every document's beginning, but for the first where the tokenizer has none to begin with."""
    import torch

    if first.fingerprint.tokenizer != loaded.fingerprint.tokenizer:
        raise ConfigError(f"{loaded.path}: its tokenizer is not the first policy's, so tokens cannot be compared")
    tokenizer = loaded.chat.tokenizer
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    most = min(most, *(one.context_length or most for one in (first, loaded)))
    with torch.inference_mode():
        for at, text in enumerate(documents):
            ids = [*begin, *tokenizer(text, add_special_tokens=False).input_ids][:most]
            if len(ids) > 1:
                mine_TV, first_TV = (
                    one.model(torch.tensor([ids], device=one.model.device)).logits[0, :-1].float().log_softmax(-1).cpu()
                    for one in (loaded, first)
                )
                kl_T = (first_TV.exp() * (first_TV - mine_TV)).sum(-1)
                chosen_T = mine_TV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
                yield from torch.stack([torch.full_like(kl_T, at), chosen_T, kl_T], dim=1).tolist()


def _texts(file: str, tokens: Mapping[str, _Tokens]) -> Iterator[ForgettingScore]:
    first, *_ = tokens.values()
    if not len(first):
        raise InputError(f"{file}: there are no two tokens in a row")
    labels = first[:, 0].astype(int)
    for name, mine in tokens.items():
        likely = clustered_mean(mine[:, 1].tolist(), labels.tolist())
        kl = clustered_mean(mine[:, 2].tolist(), labels.tolist(), (0.0, math.inf))
        low, high = (None if bound is None else math.exp(min(-bound, 700)) for bound in (likely.high, likely.low))
        changes = mine[:, 1] - first[:, 1]
        sums_D = np.bincount(labels, changes)
        rate = SuccessRate(
            success=replace(likely, mean=math.exp(-likely.mean), low=low, high=high),
            change=None if mine is first else clustered_mean(changes.tolist(), labels.tolist()),
            gained=int((sums_D > 0).sum()),
            lost=int((sums_D < 0).sum()),
        )
        suite = f"perplexity of {file} (change: a token's log-likelihood)"
        yield ForgettingScore(policy=name, suite=suite, rate=rate, kl=None if mine is first else kl)


def _ask(
    policy: str, loaded: LoadedModel, tasks: Sequence[str], wanted: ForgettingSettings, cache: Path
) -> list[ItemScore]:
    """All items, a group's tasks as one suite; answers stay in `cache`. Raises InputError where lm-eval fails."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tokenizer = copy.deepcopy(loaded.chat.tokenizer)
    tokenizer.chat_template = loaded.chat.template
    cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        found: Any = lm_eval.simple_evaluate(
            HFLM(pretrained=loaded.model, tokenizer=tokenizer, batch_size=wanted.batch),
            tasks=[*tasks],
            task_manager=TaskManager(include_path=str(wanted.include) if wanted.include else None),
            limit=wanted.limit,
            use_cache=str(cache),
            apply_chat_template=wanted.chat,
            bootstrap_iters=0,
        )
    except Exception as error:  # tasks are anyone's code, and data from anywhere
        raise InputError(f"lm-eval, {' '.join(tasks)}: {type(error).__name__}: {brief(error)}") from error
    return [
        ItemScore(policy=policy, suite=suite, item=key, cluster=key, rewards=(value,))
        for task in tasks
        for leaf in _leaves(task, found["group_subtasks"])
        for suite, item, value in lm_eval_rows(found["samples"][leaf], task, None, leaf)
        for key in [item if leaf == task else f"{leaf} {item}"]
    ]


def _leaves(task: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    return [leaf for one in groups.get(task) or () for leaf in _leaves(one, groups)] or [task]
