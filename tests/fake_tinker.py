"""A Tinker API server over real HTTP: a few endpoints, which really train and sample a tiny torch model.

`reduction` is how it adds up: "sum" as the hosted service documents it (and takes no inputs that a loss does not name),
"mean" as SkyRL's JAX backend does (per sequence over the sum of its weights, 1 each by default, then over sequences;
log-probabilities of a prompt begin at its second token, where the other server has one that is none).
All weights are trained, not a LoRA, so that gradients can be held against those of a learner in process.
"""

from __future__ import annotations

import copy
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as wire

from pivotrl.models import ModelSettings, load_model

INPUTS = {
    "cross_entropy": {"target_tokens", "weights"},
    "importance_sampling": {"target_tokens", "logprobs", "advantages"},
    "ppo": {"target_tokens", "logprobs", "advantages"},
}
NUMBERS = {wire.DTYPE_FLOAT32: np.float32, wire.DTYPE_INT64: np.int64}


class RefusedError(Exception):
    """Answered with status 422, which the client does not try again."""


class Model:
    """One training run: its weights, its gradients and its optimiser."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.sequences = 0
        self.asked = 0

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


class FakeTinker:
    """Use as a context manager; `models` holds the training runs in the order in which they were made."""

    def __init__(self, directory: Path, reduction: str = "sum") -> None:
        self.base, self.reduction = str(directory), reduction
        self.initial = load_model(self.base, ModelSettings()).model
        self.models: list[Model] = []
        self.saved: dict[str, Any] = {}
        self.samplers: dict[str, Any] = {}
        self.results: dict[str, bytes | dict[str, Any]] = {}
        self.losses: list[str] = []
        self.saves = 0
        self.lock, self._numbers = threading.Lock(), itertools.count()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"fake": self}))
        self._http.daemon_threads, self._http.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> FakeTinker:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: bytes) -> bytes | dict[str, Any]:
        """JSON, or protobuf bytes. Raises RefusedError."""
        if path == "forward_backward":
            return self._later(self.forward_backward(body))
        asked = json.loads(body or b"{}")
        if path == "retrieve_future":
            return self.results[asked["request_id"]]
        found = getattr(self, path.replace("/", "_"), None)
        if found is None:
            raise RefusedError(f"no {path} here")
        answer = found(asked)
        at_once = ("get_server_capabilities", "create_sampling_session", "weights_info")
        plain = path.startswith(("client", "create_session", "session", "telemetry")) or path in at_once
        return answer if plain else self._later(answer)

    def _later(self, result: bytes | dict[str, Any]) -> dict[str, Any]:
        number = str(next(self._numbers))
        self.results[number] = result
        return {"request_id": number}

    def client_config(self, _: Any) -> dict[str, Any]:
        return {}

    def client_dynamic_config(self, _: Any) -> dict[str, Any]:
        return {}

    def telemetry(self, _: Any) -> dict[str, Any]:
        return {"status": "accepted"}

    def create_session(self, _: Any) -> dict[str, Any]:
        return {"session_id": f"session{next(self._numbers)}"}

    def session_heartbeat(self, _: Any) -> dict[str, Any]:
        return {}

    def get_server_capabilities(self, _: Any) -> dict[str, Any]:
        return {"supported_models": [{"model_name": self.base, "max_context_length": 512}]}

    def create_sampling_session(self, asked: Any) -> dict[str, Any]:
        path = asked.get("model_path")
        return {"sampling_session_id": self._sampler(self.saved[path][0] if path else self.initial.state_dict())}

    def _sampler(self, weights: Any) -> str:
        name = f"sampler{next(self._numbers)}"
        self.samplers[name] = copy.deepcopy(weights)
        return name

    def create_model(self, asked: Any) -> dict[str, Any]:
        if asked["base_model"] != self.base:
            raise RefusedError("no such base model")
        self.models.append(Model(self.initial))
        return {"model_id": f"run{len(self.models) - 1}"}

    def _run(self, asked: Any) -> tuple[str, Model]:
        name = asked["model_id"] if isinstance(asked, dict) else asked.model_id
        run = self.models[int(name.removeprefix("run"))]
        run.asked += 1
        return name, run

    def forward_backward(self, body: bytes) -> bytes:
        asked = wire.ForwardBackwardRequest.FromString(body)
        _, run = self._run(asked)
        self.losses.append(asked.loss_fn)
        outputs, total = [], torch.zeros(())
        for datum in asked.data:
            ids = np.concatenate([np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input])
            given = {
                name: torch.from_numpy(np.frombuffer(tensor.dense, NUMBERS[tensor.dtype]).copy())
                for name, tensor in datum.loss_fn_inputs.items()
            }
            unknown = given.keys() - INPUTS[asked.loss_fn] - ({"weights"} if self.reduction == "mean" else set())
            if unknown or any(len(row) != len(ids) for row in given.values()):
                raise RefusedError(f"unexpected {unknown or 'lengths'}")
            logits = run.model(torch.from_numpy(ids).long()[None]).logits[0]
            logprobs = torch.log_softmax(logits.float(), -1).gather(1, given["target_tokens"][:, None])[:, 0]
            losses = _losses(asked.loss_fn, logprobs, given, asked.loss_fn_config)
            if self.reduction == "mean":
                weights = given.get("weights", torch.ones(len(ids)))
                losses = losses if asked.loss_fn == "cross_entropy" else losses * weights
                losses = losses / weights.sum().clamp(min=1e-9)
            total = total + losses.sum()
            outputs.append(logprobs.detach().numpy())
        if not asked.forward_only:
            total.backward()
            run.sequences += len(asked.data)
        return self._output(outputs, float(total.detach()))

    def _output(self, rows: list[Any], total: float) -> bytes:
        message = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        if self.reduction == "sum":
            message.metrics["loss:sum"] = total
        record = message.loss_fn_outputs.add()
        record.num_datums = len(rows)
        offsets = np.cumsum([0, *(row.nbytes for row in rows)], dtype=np.int64).tobytes()
        tensor = wire.BatchedTensor(
            data=b"".join(row.tobytes() for row in rows), offsets=offsets, dtype=wire.DTYPE_FLOAT32
        )
        for name in ["logprobs"] + ["elementwise_loss"] * (self.reduction == "mean"):
            record.fields[name].CopyFrom(tensor)
        return message.SerializeToString()

    def gradients(self) -> dict[str, Any]:
        """Of the last training run, as its next step will use them."""
        run = self.models[-1]
        count = run.sequences if self.reduction == "mean" else 1
        return {name: parameter.grad / count for name, parameter in run.model.named_parameters()}

    def optim_step(self, asked: Any) -> dict[str, Any]:
        _, run = self._run(asked)
        how = asked["adam_params"]
        parameters = list(run.model.parameters())
        for parameter in parameters:
            parameter.grad /= run.sequences if self.reduction == "mean" else 1
        norm = torch.nn.utils.clip_grad_norm_(parameters, how["grad_clip_norm"] or float("inf"))
        run.optimizer.param_groups[0] |= {
            "lr": how["learning_rate"],
            "betas": (how["beta1"], how["beta2"]),
            "eps": how["eps"],
            "weight_decay": how["weight_decay"],
        }
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        run.sequences = 0
        return {"metrics": {"test/grad_norm": float(norm)}}

    def save_weights(self, asked: Any) -> dict[str, Any]:
        name, run = self._run(asked)
        path = f"tinker://{name}/weights/{asked['path']}"
        self.saved[path] = run.state()
        return {"path": path, "type": "save_weights"}

    def save_weights_for_sampler(self, asked: Any) -> dict[str, Any]:
        name, run = self._run(asked)
        self.saves += 1
        if asked.get("path") is None:
            return {"sampling_session_id": self._sampler(run.model.state_dict()), "type": "save_weights_for_sampler"}
        path = f"tinker://{name}/sampler_weights/{asked['path']}"
        self.saved[path] = run.state()
        return {"path": path, "type": "save_weights_for_sampler"}

    def weights_info(self, asked: Any) -> dict[str, Any]:
        if asked["tinker_path"] not in self.saved:
            raise RefusedError("nothing was saved there")
        return {"base_model": self.base, "is_lora": True, "lora_rank": 8}

    def load_weights(self, asked: Any) -> dict[str, Any]:
        _, run = self._run(asked)
        if run.asked > 1:
            raise RefusedError("load into a fresh model")
        run.load(self.saved[asked["path"]])
        return {"path": asked["path"], "type": "load_weights"}

    @torch.inference_mode()
    def asample(self, asked: Any) -> bytes:
        self.initial.eval()
        model = copy.deepcopy(self.initial)
        model.load_state_dict(self.samplers[asked["sampling_session_id"]])
        prompt = [token for chunk in asked["prompt"]["chunks"] for token in chunk["tokens"]]
        how, answer = asked["sampling_params"], wire.SampleResponse()
        if asked.get("prompt_logprobs"):
            logprobs = torch.log_softmax(model(torch.tensor([prompt])).logits[0].float(), -1)
            rows = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].numpy()
            first = [np.nan] if self.reduction == "sum" else []  # SkyRL's JAX backend leaves it out
            answer.prompt_logprobs = np.concatenate([first, rows]).astype(np.float32).tobytes()
        for index in range(asked["num_samples"]):
            random = torch.Generator().manual_seed((how.get("seed") or 0) * 1000 + index)
            answer.sequences.append(_sequence(model, prompt, how, random))
        return answer.SerializeToString()


def _losses(name: str, logprobs: Any, given: dict[str, Any], config: Any) -> Any:
    if name == "cross_entropy":
        return -logprobs * given["weights"]
    ratio = (logprobs - given["logprobs"]).exp()
    if name == "importance_sampling":
        return -ratio * given["advantages"]
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    return -torch.minimum(ratio * given["advantages"], ratio.clamp(low, high) * given["advantages"])


def _sequence(model: Any, prompt: list[int], how: dict[str, Any], random: torch.Generator) -> wire.SampledSequence:
    ids, logprobs, stopped = [], [], False
    while len(ids) < how["max_tokens"] and not stopped:
        row = torch.log_softmax(model(torch.tensor([prompt + ids])).logits[0, -1].float(), -1)
        warm = how["temperature"]
        token = int(torch.multinomial((row / warm).softmax(-1), 1, generator=random)) if warm else int(row.argmax())
        ids.append(token)
        logprobs.append(float(row[token]))
        stopped = token in (how.get("stop") or ())
    return wire.SampledSequence(
        stop_reason=wire.STOP_REASON_STOP if stopped else wire.STOP_REASON_LENGTH,
        tokens=np.array(ids, np.int32).tobytes(),
        logprobs=np.array(logprobs, np.float32).tobytes(),
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeTinker

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        try:
            with self.fake.lock:
                answer, status = self.fake.answer(self.path.removeprefix("/api/v1/"), body), 200
        except RefusedError as refusal:
            answer, status = {"detail": str(refusal)}, 422
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf" if isinstance(answer, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
