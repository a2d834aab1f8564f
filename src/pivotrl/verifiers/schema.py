"""`schema`: calls that the tools take, whatever they do: the part of `tool_call` that looks at no demonstrated value.

No reward by itself: it is there to go first in a `cascade`. A schema that is broken, or that a demonstrated call of the
tool violates, is left aside.
"""

from __future__ import annotations

from dataclasses import dataclass

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, decided, judged
from pivotrl.verifiers.schemas import applicable, demonstrated


@dataclass(frozen=True, slots=True)
class SchemaVerifier(BuiltIn):
    name = "schema"

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for calls that the tools take, 0 for others, unscored where nothing is called."""
        if not action.calls:
            return judged(self, None, "not_applicable", "no call was made")
        return decided(self, schema_refusal(candidate, action))


def schema_refusal(candidate: Candidate, action: Action) -> Refusal | None:
    """Why a tool would not take a call: it is not there, or its arguments are no object or against its schema."""
    tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
    for call in action.calls:
        tool, arguments = tools.get(call.name), arguments_of(call).value
        shown = [demonstrated(one, tool) for one in candidate.demonstration.calls if one.name == call.name]
        if candidate.trajectory.tools is not None and tool is None and not shown:
            return "unknown_tool", call.name
        if arguments is None:
            return "bad_arguments", f"{call.name}: {arguments_of(call).error}"
        schema = applicable(call.name, shown, tool)
        violation = schema and schema.fault(arguments)
        if violation is not None:
            return "invalid_arguments", f"{call.name}: {violation}"
    return None
