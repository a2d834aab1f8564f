"""Explain: which rule `tool_call` compares each argument by, for the tools of a run's trajectories."""

from __future__ import annotations

from dataclasses import dataclass

from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.storage import dump_json
from pivotrl.verifiers import load_verifier
from pivotrl.verifiers.auto import AutoVerifier
from pivotrl.verifiers.rules import AppliedRule, applied, named_tools, tool_rules
from pivotrl.verifiers.tool_call import ToolCallVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainConfig:
    """Show by which rule tool_call compares each argument, and where the rule comes from."""

    run: AnyPath
    """Run directory, made by `ingest`."""
    verifier: str = "auto"
    """auto or tool_call, with settings: auto:rules=FILE."""
    tool: str | None = None
    """Only the tool of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTool:
    """One tool and the rules that hold for it."""

    name: str
    read_only: bool
    rules: tuple[AppliedRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult:
    """The tools by name; one that has two schemas in the run comes twice."""

    tools: tuple[ExplainedTool, ...]
    strange: tuple[str, ...] = ()
    """Tools that the rules name and the run does not have."""

    def lines(self) -> list[str]:
        lines = [f"warning: the rules name {name}, and no trajectory has such a tool" for name in self.strange]
        for tool in self.tools:
            lines.append(tool.name + (" (read-only)" if tool.read_only else ""))
            lines += [f"    {rule.argument:<24} {rule.rule:<20} {rule.origin}" for rule in tool.rules]
        return lines


def explain(config: ExplainConfig) -> ExplainResult:
    """Raises ConfigError for a verifier without such rules, MissingError where the run has no such tool."""
    verifier = load_verifier(config.verifier)
    judge = verifier.tool_call if isinstance(verifier, AutoVerifier) else verifier
    if not isinstance(judge, ToolCallVerifier):
        raise ConfigError(f"verifier {config.verifier!r} has no rules of arguments; use auto or tool_call")
    run = RunDirectory(config.run)
    run.stages()
    store = CandidateStore(run)
    tools = (tool for id_ in store.index for tool in store.trajectory(id_).tools or ())
    distinct = sorted({(tool.name, dump_json(tool.parameters)): tool for tool in tools}.items())
    rules, names = judge.rules, dict.fromkeys(name for (name, _), _ in distinct)
    found = tuple(
        ExplainedTool(name=name, read_only=tool_rules(rules, name).read_only, rules=tuple(applied(rules, tool)))
        for (name, _), tool in distinct
        if config.tool in (None, name)
    )
    if not found:
        hint = f"it has {', '.join(names)}" if names else "give their schemas to `pivotrl ingest --tools`"
        raise MissingError(f"{config.run}: no trajectory tells of {config.tool or 'its tools'}; {hint}")
    return ExplainResult(tools=found, strange=tuple(sorted(named_tools(rules) - names.keys())))
