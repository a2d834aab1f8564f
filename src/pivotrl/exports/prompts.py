"""The prompts of an export, rendered by our chat code, so that another trainer starts from the same tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pivotrl.chat import ChatFormat, RenderError
from pivotrl.errors import ConfigError
from pivotrl.exports.base import Item, Material
from pivotrl.models import load_chat, trained_model
from pivotrl.types import SamplingParams, Split


class Prompts:
    """Renders candidates; those that the template refuses are left out and counted.

    Raises ConfigError without a policy, or where its tokenizer or template is not what was profiled; MissingError.
    """

    def __init__(self, material: Material) -> None:
        config, plan = material.config, material.plan
        spec = config.policy or (plan.policy if plan else "")
        if not spec:
            raise ConfigError("policy: say whose tokenizer renders the prompts with --policy DIRECTORY_OR_ID")
        settings = config.model.inherit(plan.model) if plan else config.model
        self.chat, tokenizer = load_chat(trained_model(material.store.run, spec), settings)
        made = plan.fingerprint if plan else None
        if made and not config.policy:
            before = made.tokenizer, made.chat_template, made.tool_parser, made.thinking
            if before != (tokenizer, self.chat.template_hash, self.chat.parser, self.chat.thinking):
                raise ConfigError(
                    f"policy {spec!r}: its tokenizer or template changed since the profile; name --policy"
                )
        self.params = plan.sampling if plan else SamplingParams()
        self.material = material
        self.left_out: Counter[str] = Counter()

    def rows(self, split: Split) -> Iterator[tuple[Item, str]]:
        """The candidates of a split with their rendered states."""
        for item in self.material.items(split):
            try:
                yield item, self.chat.prompt_text(item.candidate.state)
            except RenderError as error:
                self.left_out[str(error)[:100]] += 1

    def notes(self) -> list[str]:
        """What was left out, for people."""
        return [f"{count} prompts left out: {reason}" for reason, count in self.left_out.items()]


def text_for_call(chat: ChatFormat, text: str) -> str | None:
    """The text whose ids are ours when a tokenizer is called, as TRL does, and adds what it adds; None: there is none."""
    ids, start = chat.encode(text), chat.tokenizer.bos_token or ""
    tried = (text, text.removeprefix(start))
    return next((one for one in tried if chat.tokenizer(one)["input_ids"] == ids), None)
