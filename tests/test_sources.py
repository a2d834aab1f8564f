"""Sources: every container gives the same records as the plain file, folders that are one set, nothing escapes."""

from __future__ import annotations

import json
from pathlib import Path

from pivotrl.ingestion import IngestConfig, ingest
from test_readers import SIM_MESSAGES, TAU2


def test_a_tau2_folder_is_one_set(tmp_path: Path) -> None:
    run = tmp_path / "in" / "telecom"
    (run / "simulations").mkdir(parents=True)
    (run / "results.json").write_text(json.dumps({"info": TAU2["info"], "tasks": [], "simulation_index": []}, indent=1))
    for name in ("a", "b"):
        simulation = {"id": name, "task_id": name, "reward_info": {"reward": 1.0}, "messages": SIM_MESSAGES[1:3]}
        (run / "simulations" / f"{name}.json").write_text(json.dumps(simulation, indent=1))
    result = ingest(IngestConfig(paths=(str(tmp_path / "in"),), run=tmp_path / "run"))
    assert (result.files, result.trajectories, result.refused) == (2, 2, [])
    lines = (tmp_path / "run" / "trajectories" / "part-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["task_id"] for row in rows] == ["telecom/a", "telecom/b"]
    assert [row["source"]["file"] for row in rows] == ["telecom/simulations/a.json", "telecom/simulations/b.json"]
    assert all(row["messages"][0] == {"role": "system", "content": "The policy."} | row["messages"][0] for row in rows)
