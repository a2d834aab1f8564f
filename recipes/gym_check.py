"""Holds an export of PivotRL against NeMo Gym itself; run by Gym's Python (recipes/nemo_gym.sh).

    python recipes/gym_check.py WORK [GYM]

Every row against Gym's models, the configurations against its own, its verifier servers, called in process, against the
`nemo_gym.*` verifiers on the recorded cases, its reward profiler on our rollouts, the exported `app.py` through HTTP's
test client against `auto`; with GYM, a checkout, upstream's row validator. Exits 1 where something differs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from nemo_gym.config_types import DatasetConfig, maybe_get_server_instance_config
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import RewardProfiler
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from pydantic import ValidationError

Record = dict[str, Any]
OLD = version("nemo-gym") < "0.7"
FOLDERS = {
    "single_step": "single_step_tool_use_with_argument_comparison",
    "swe_pivot": "swe_pivot",
    "terminus": "terminus_judge",
    "multi_harness": "terminal_multi_harness",
}
STRING_ONLY = {"enable_string_similarity": True, "string_similarity_threshold": 0.9, "enable_llm_judge": False}
BASE = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "domain": "agent", "name": "server"}


def load(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def module_of(path: Path) -> Any:
    found = importlib.util.spec_from_file_location(f"exported_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def started(kind: Any, config: Record) -> Any:
    """A server of this class, in process."""
    made = kind.model_fields["config"].annotation(**BASE | config)
    return kind(config=made, server_client=MagicMock(spec=ServerClient))


def server_of(name: str, config: Record) -> tuple[Any, Any]:
    """(server, its request model) of Gym's own."""
    app = importlib.import_module(f"resources_servers.{FOLDERS[name]}.app")
    kind = next(
        one for key, one in vars(app).items() if key.endswith("ResourcesServer") and one.__module__ == app.__name__
    )
    request = next(
        one for key, one in vars(app).items() if key.endswith("VerifyRequest") and one.__module__ == app.__name__
    )
    return started(kind, config), request


def rows(folder: Path) -> int:
    """Rows that Gym's models take, nulls counted as faults; exits where it does not."""
    _, single = server_of("single_step", {"tool_call_comparator_config": {"word_count_similarity_threshold": 0.1}})
    _, terminus = server_of("terminus", STRING_ONLY)
    unread = Counter[str]()
    found = [row for split in ("train", "validation") for row in load(folder / f"{split}.jsonl")]
    response = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [], "tools": []}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto"}
    for row in found:
        params = row["responses_create_params"]
        NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
        if any(value is None for value in params.values()) or (params["tools"] and params["tool_choice"] != "auto"):
            sys.exit(f"a row of {folder} holds null, or another tool_choice than auto")
        model = terminus if "expected_answer" in row else single
        batch = row.get("expected_action", {}).get("type") == "function_call_batch"
        try:
            model.model_validate(row | {"response": response})
        except ValueError:
            if not (batch and OLD):
                raise
            unread["function_call_batch"] += 1
    print(
        f"rows: {len(found)} of {folder.name} pass Gym's models"
        + (f", but {dict(unread)}: not in this version" if unread else "")
    )
    return len(found)


def configs(folder: Path) -> None:
    """The YAML of server, agent and datasets by Gym's config models."""
    for path in sorted((folder / "resources_servers" / "pivotrl" / "configs").glob("*.yaml")):
        for name, told in OmegaConf.load(path).items():
            found = maybe_get_server_instance_config(str(name), told)
            found = found[0] if isinstance(found, tuple) else found
            if found is None:
                sys.exit(f"{path}: Gym does not take {name}")
            for agent in told.get("responses_api_agents", {}).values():
                for dataset in agent.datasets:
                    DatasetConfig.model_validate(OmegaConf.to_container(dataset))
        ((server, settings),) = OmegaConf.to_container(OmegaConf.load(path))["pivotrl_resources_server"][
            "resources_servers"
        ].items()
        if server in FOLDERS.values():
            server_of(next(key for key, name in FOLDERS.items() if name == server), settings)
        print(f"configuration: {path.name} of {folder.name} is Gym's")
    overlay = OmegaConf.load(folder / "nemo_rl.yaml")
    prompts, each = overlay.grpo.num_prompts_per_step, overlay.grpo.num_generations_per_prompt
    if prompts * each != overlay.policy.train_global_batch_size:
        sys.exit("nemo_rl.yaml: prompts x generations is not the global batch")


def asked(server: Any, model: Any, case: Record) -> float | None:
    """Gym's reward; None where its server raises."""
    try:
        body = model.model_validate(case["row"] | {"response": case["response"]})
        return float(asyncio.run(server.verify(body)).reward)
    except Exception:  # whatever a server lets through is an HTTP 500 to Gym
        return None


def is_new(case: Record) -> bool:
    """Whether 0.4 knows nothing of a case: batches, and what they are rewarded by."""
    config = case["config"].get("tool_call_comparator_config", {})
    batch = case["row"].get("expected_action", {}).get("type") == "function_call_batch"
    return batch or bool(config.get("parallel_tool_call_rewarding"))


def verdicts(cases: list[Record]) -> Iterator[Record]:
    """The cases on which Gym and our verifiers differ."""
    servers: dict[str, Any] = {}
    agreed, rewarded, total = Counter[str](), Counter[str](), Counter[str]()
    for case in cases:
        if OLD and case["server"] == "single_step" and is_new(case):
            continue
        key = json.dumps([case["server"], case["config"]])
        if key not in servers:
            servers[key] = server_of(case["server"], case["config"])
        server, model = servers[key]
        theirs, ours = asked(server, model, case), case["nemo_gym"]
        same = theirs == ours if None in (theirs, ours) else abs(theirs - ours) < 1e-9
        total[case["server"]] += 1
        agreed[case["server"]] += same
        rewarded[case["server"]] += (ours or 0) > 0
        if not same:
            yield case | {"theirs": theirs}
    for name, count in sorted(total.items()):
        print(f"verdicts: {name} {agreed[name]} of {count} as the server's ({rewarded[name]} rewarded)")
    if skipped := len(cases) - total.total():
        print(f"verdicts: {skipped} cases of batches, which this version has not")


def own_server(folder: Path, cases: list[Record]) -> int:
    """The exported app.py behind Gym's web server; returns how many verdicts differ from `auto` on the run."""
    app = module_of(folder / "resources_servers" / "pivotrl" / "app.py")
    config = OmegaConf.to_container(OmegaConf.load(folder / "resources_servers/pivotrl/configs/pivotrl.yaml"))
    told = config["pivotrl_resources_server"]["resources_servers"]["pivotrl"]
    server = started(app.PivotRLServer, {"verifier": told["verifier"]})
    wrong = 0
    with TestClient(server.setup_webserver()) as client:
        for case in cases:
            answer = client.post("/verify", json=case["row"] | {"response": case["response"]})
            wrong += answer.status_code != 200 or answer.json()["reward"] != case["auto"]
        good = cases[0]["row"] | {"response": cases[0]["response"]}
        bad = [b"", b"[", b"[]", b"{}", b"NaN", b"[" * 10**5, json.dumps(good | {"reward": "x"}).encode()]
        bad += [b"\xff", b'{"a": "\xff"}', b'{"a": "\\ud800"}', json.dumps(good | {"extra": "\ud800"}).encode()]
        bad += [json.dumps(good | {key: value}).encode() for key in good for value in (None, 5, [{}], {"a": 1})]
        for body in [*bad, json.dumps(good | {"reward": 1, "reason": "", "detail": [], "extra": math.inf}).encode()]:
            for head in ({}, {"content-type": "application/json"}):
                answer = client.post("/verify", content=body, headers=head)
                wrong += answer.status_code >= 500
        wrong += [client.get("/verify").status_code, client.post("/nowhere").status_code] != [405, 404]
    for unknown in ("no_such_verifier", "gone.py:verify", "cascade("):  # says so as it starts, not at each row
        with suppress(ValidationError):
            started(app.PivotRLServer, {"verifier": unknown})
            wrong += 1
    print(f"our server: {len(cases) - wrong} of {len(cases)} verdicts as in the run")
    return wrong


def profiler(work: Path) -> int:
    """Gym's reward profiler on our rollouts; returns how many means differ."""
    inputs, results = load(work / "rollouts_materialized_inputs.jsonl"), load(work / "rollouts.jsonl")
    means = load(work / "means.jsonl")[0]
    tasks = RewardProfiler().profile_from_data(inputs, results)[0]
    wrong = [one for one in tasks if abs(one["mean/reward"] - means[one["sample"]["pivotrl"]["candidate"]]) > 1e-9]
    print(f"reward profiler: {len(tasks)} tasks, {len(results)} rollouts, {len(wrong)} means differ")
    return len(wrong)


def upstream(gym: Path, folder: Path) -> None:
    """Upstream's row validator on the rows that are of its kind."""
    script = next(gym.glob(".*/skills/nemo-gym-pivot-datasets/scripts/validate_pivot_dataset.py"), None)
    if script is None:
        sys.exit(f"{gym}: no row validator in its skills")
    kept = [row for row in load(folder / "train.jsonl") if "expected_action" in row]
    path = folder.parent / "validated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, "--path", path, "--agent-ref", "pivotrl_agent"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(
        f"upstream's validator: {len(kept)} rows, exit {done.returncode} {(done.stderr or done.stdout).splitlines()[0]}"
    )


def main() -> None:
    work, *gym = map(Path, sys.argv[1:])
    print(f"nemo-gym {version('nemo-gym')}, Python {sys.version.split()[0]}")
    for folder in sorted(work.glob("gym*")):
        rows(folder)
        configs(folder)
    cases = load(work / "cases.jsonl")
    different = list(verdicts(cases))
    for case in different:
        calls = [one.get("arguments", "")[:60] for one in case["items"]]
        print(f"  {case['server']}: Gym {case['theirs']}, ours {case['nemo_gym']} ({case['code']}) {calls}")
    wrong = own_server(work / "gym", cases) + profiler(work)
    for checkout in gym:
        upstream(checkout, work / "gym")
    sys.exit(1 if wrong or (different and not OLD) else 0)


if __name__ == "__main__":
    main()
