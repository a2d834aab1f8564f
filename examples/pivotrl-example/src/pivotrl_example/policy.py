"""A scripted policy: right as often as the number behind its name says (`homebody:0.7`), else off, or talkative."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from pivotrl import Action, ConfigError, ModelSettings, Policy, ScriptedPolicy, State
from pivotrl_example.house import call, next_action

VERSION = "1"
"""Belongs to the policy's fingerprint: another version is another policy."""


def make(argument: str, settings: ModelSettings) -> Policy:
    """What `--policy homebody:ARGUMENT` stands for; the settings are those of `--model`. Raises ConfigError."""
    try:
        right = float(argument or 0.5)
    except ValueError:
        raise ConfigError(f"homebody:{argument}: write how often it is right, such as homebody:0.7") from None

    def script(state: State, rng: random.Random) -> str:
        return _text(_act(state, rng, right))

    return ScriptedPolicy(script, name=f"homebody:{right:g}", version=VERSION)


def _act(state: State, rng: random.Random, right: float) -> Action:
    action = next_action(state.messages)
    if rng.random() < right:
        return action
    if not action.calls or action.calls[0].name == "look":
        return Action(text="Let me think.") if action.calls else call("look", room="attic")
    arguments = dict(action.calls[0].parsed.value or {})
    arguments["degrees"] = int(str(arguments["degrees"])) + rng.choice([-3, -1, 1, 3])
    return Action(calls=(replace(action.calls[0], arguments=json.dumps(arguments)),))


def _text(action: Action) -> str:
    """An action as a model would write it (Hermes syntax)."""
    calls = [f'{{"name": "{one.name}", "arguments": {one.arguments}}}' for one in action.calls]
    return "\n".join([*filter(None, [action.text]), *(f"<tool_call>\n{one}\n</tool_call>" for one in calls)])
