"""A verifier as a resources server of NeMo Gym; needs `nemo-gym` (0.4 or later) beside this package, and no torch.

Without `from __future__ import annotations`: FastAPI would look for the request's class among the module's names.
"""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, ValidationError

from pivotrl import actions
from pivotrl.errors import ConfigError, PivotRLError, brief
from pivotrl.protocols import Verifier
from pivotrl.rollouts import judge
from pivotrl.trajectories.nemo_gym import NemoGym, read_response
from pivotrl.types import Action, Candidate, Completion, Source, Verdict
from pivotrl.verifiers import load_verifier


def verdict_on(verifier: Verifier, row: Mapping[str, Any], response: Mapping[str, Any]) -> Verdict:
    """The word on a response at a pivot row; what was cut off, or does nothing, is wrong. Raises InputError."""
    (trajectory,) = NemoGym().read(dict(row), Source(file="row", format=NemoGym.name))
    action = read_response(dict(response), "response")
    if trajectory.syntax and not action.calls:  # calls are written into the text there
        found = actions.parse(action.text or "", trajectory.syntax, trajectory.tools)
        action = found if isinstance(found, Action) else Action()
    done = Completion(
        action=action if action.calls or action.text is not None else None,
        text=action.text or "",
        finish_reason="length" if response.get("incomplete_details") else "stop",
    )
    return judge(verifier, Candidate(trajectory=trajectory, turn=len(trajectory.messages) - 1), done, "zero")


def gym_server(verifier: Verifier | str = "auto") -> Any:
    """The server's class, for `app.py`: `gym_server("auto").run_webserver()`. `verifier:` in Gym's YAML names another.

    A row, or a body, that cannot be read is answered with 422 and why. Where the verifier fails there is no reward: 0.7
    puts the rollout aside (`judge_failed`), 0.4 answers HTTP 500.
    Raises ConfigError where NeMo Gym is not installed; a verifier that is not there ends the server as it starts.
    """
    try:
        from fastapi import HTTPException
        from fastapi.responses import JSONResponse
        from nemo_gym import base_resources_server as gym
    except ImportError as error:
        raise ConfigError(f"NeMo Gym cannot be imported ({error}); run this in an environment with nemo-gym") from None
    failure = getattr(sys.modules.get("nemo_gym.judge"), "JudgeError", RuntimeError)
    named, load = verifier if isinstance(verifier, str) else "", cache(load_verifier)

    async def not_json(request: Any, error: Exception) -> Any:
        why = (
            "the body holds what JSON in UTF-8 cannot: other bytes, half a character, NaN or an infinity; mend the row"
        )
        return JSONResponse({"detail": why}, 422)

    class Config(gym.BaseResourcesServerConfig):  # type: ignore[misc]
        verifier: Annotated[str, AfterValidator(lambda name: (not name or load(name)) and name)] = named
        """As for `--verifier`; empty: the object that `gym_server` was given."""

    class Request(gym.BaseVerifyRequest):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class Response(gym.BaseVerifyResponse):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class PivotRLServer(gym.SimpleResourcesServer):  # type: ignore[misc]
        config: Config

        def setup_webserver(self) -> Any:
            app = super().setup_webserver()
            app.add_exception_handler(ValueError, not_json)  # FastAPI's refusals quote what no answer can hold
            return app

        async def verify(self, body: Request) -> Response:
            row = body.model_dump(mode="json", exclude_unset=True)
            asked = load(self.config.verifier) if self.config.verifier or isinstance(verifier, str) else verifier
            try:
                word = verdict_on(asked, row, row["response"])
                said = {"reward": word.value or 0.0, "reason": word.reason, "detail": word.detail}
                answer = Response(**body.model_dump() | said)
            except (PivotRLError, ValidationError) as error:
                raise HTTPException(422, brief(error)) from None
            if word.value is None:
                raise failure(f"{word.verifier}: {word.reason} {word.detail}")
            return answer

    return PivotRLServer
