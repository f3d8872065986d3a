"""What the training stages share: optimiser, schedule, checkpoint and resume, logs, precision, the loop itself.

A stage is a `Task`: a policy, a number of steps, a loss for step k, a look at held-out data. Its data must be a
function of (seed, step) alone, so a run that is broken off and resumed gives the same losses as an unbroken one; no
random state is stored. A run folder holds

    config.json      the stage's settings
    policy/          the weights (`checkpoint.load_policy`), with the step in their notes
    resume.pt        weights and optimiser of the same step, one file, for an exact `resume` on the same machine
    loss.jsonl       one line every `log_every` steps;  checks.jsonl: held-out figures;  tensorboard/: both

Weights alone are enough to go on elsewhere: `start_from` takes the step from their notes, and the learning rate is
warmed up again. Not covered: several devices, gradient accumulation, dropout.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from sparserl.errors import BackendError, StoreError
from sparserl.policy.checkpoint import load_policy, read_config, save_policy
from sparserl.policy.model import Policy
from sparserl.store import append_jsonl, keep_jsonl, read_json, read_jsonl, write_atomic, write_json

log = logging.getLogger(__name__)

RESUME, POLICY, CONFIG, LOSSES, CHECKS = "resume.pt", "policy", "config.json", "loss.jsonl", "checks.jsonl"
FREE = {
    "loop": {"device", "compile", "check_every", "check_first", "log_every", "save_every_s", "budget_s"},
    "curriculum": {"spmv_cases", "spmm_cases", "large", "drawn", "large_drawn", "twisted", "strewn", "far", "shown"},
    "explore": {"top", "kinds", "even"},
    "": {"rounds", "varied", "choose_steps", "choose_batch", "admit_steps", "admit_batch"},
}
"""what may change when a run goes on, by section: the loop's move no weight; RL may play and learn from more"""


@dataclass(frozen=True)
class LoopConfig:
    """How a stage is optimised and watched."""

    learning_rate: float = 1e-3
    """the highest, after the warm-up; a cosine leads from it down to `final` of it"""
    warmup: int = 100
    """steps of a linear warm-up, at the start and again after a start from weights alone"""
    final: float = 0.1
    weight_decay: float = 0.1
    """on matrices; never on norms, biases and embeddings of single vectors"""
    beta2: float = 0.95
    clip: float = 1.0
    """largest norm of the gradient"""
    seed: int = 0
    device: str = "auto"
    """auto (cuda where there is one), cuda or cpu"""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a GPU"""
    check_every: int = 500
    """steps between looks at held-out data; there is one at the end too"""
    check_first: bool = False
    """and one before the first step"""
    log_every: int = 20
    save_every_s: float = 180.0
    """seconds between checkpoints; there is one at the end too"""
    budget_s: float = 0.0
    """stop cleanly, with a checkpoint, so many seconds after the stage began; 0: no limit"""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "log_every", "check_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"The '{name}' of a LoopConfig must be above 0. Got {getattr(self, name)}.")
        if self.compile not in ("auto", "on", "off"):
            raise ValueError(f"The 'compile' of a LoopConfig must be auto, on or off. Got {self.compile!r}.")
        if self.warmup < 0 or self.budget_s < 0:
            raise ValueError("The 'warmup' and 'budget_s' of a LoopConfig must not be negative.")


@dataclass(frozen=True)
class Step:
    """What a task gives for one step."""

    loss: Tensor
    tokens: int
    """that the model read"""
    parts: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """summands and other figures worth a curve"""


class Task(Protocol):
    """A stage, as the loop sees it."""

    @property
    def stage(self) -> str: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def steps(self) -> int: ...
    def loss(self, step: int) -> Step: ...
    def check(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Progress:
    """Told after every `log_every` steps."""

    stage: str
    step: int
    steps: int
    loss: float
    tokens_per_s: float
    checks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """the latest held-out figures"""


@dataclass(frozen=True)
class Finished:
    """How far a run came."""

    folder: Path
    step: int
    steps: int
    tokens: int
    """read by this process"""
    seconds: float
    checks: Mapping[str, float]

    @property
    def complete(self) -> bool:
        return self.step >= self.steps


Watch = Callable[[Progress], None]


def device_of(name: str) -> torch.device:
    """The device that 'auto', 'cuda' or 'cpu' stands for."""
    if name not in ("auto", "cuda", "cpu"):
        raise BackendError(f"The device of a training stage must be auto, cuda or cpu. Got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendError("There is no CUDA device that torch can use: give --device cpu, or use another machine.")
    there = torch.cuda.is_available()
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU, float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def compiled(function: Callable[..., Any], config: LoopConfig) -> Callable[..., Any]:
    """`function`, whose batches are all of one shape, through torch.compile where the switch or a GPU says so."""
    return torch.compile(function) if _compiles(config) else function


def compile_layers(policy: Policy, config: LoopConfig) -> None:
    """The same for batches of any shape: the layers of the language model, which are one piece of code eight times.

    All of a policy at once would be compiled twice, for minutes; its layers take seconds and have most of the work.
    """
    if _compiles(config):
        for layer in policy.language.model.layers:
            layer.compile(dynamic=True)


def _compiles(config: LoopConfig) -> bool:
    return device_of(config.device).type == "cuda" if config.compile == "auto" else config.compile == "on"


def rate(config: LoopConfig, step: int, steps: int, begun: int) -> float:
    """The learning rate of a step: cosine over the whole run, times the warm-up since step `begun`."""
    share = min(1.0, step / max(1, steps))
    cosine = config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * share))
    warm = min(1.0, (step - begun + 1) / (config.warmup + 1))
    return config.learning_rate * cosine * warm


def make_optimiser(policy: Policy, config: LoopConfig) -> torch.optim.AdamW:
    """AdamW over what has a gradient; matrices decay, vectors don't."""
    free = [each for each in policy.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in free if each.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in free if each.dim() < 2], "weight_decay": 0.0},
    ]
    fused = device_of(config.device).type == "cuda"
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, config.beta2), fused=fused)


# ── Starting and going on ─────────────────────────────────────────────────────


def open_run(folder: Path, stage: str, settings: Mapping[str, Any], resume: bool) -> bool:
    """Write the settings of a new run, or check those of an old one; True where there is a checkpoint to go on from."""
    stored = folder / CONFIG
    mine = json.loads(json.dumps({"stage": stage, **settings}, default=str))
    if not stored.exists():
        write_json(stored, mine)
        return False
    if not resume:
        raise StoreError(f"{folder} holds a run already: go on with --resume, or choose another --out folder.")
    if (changed := _changed(read_json(stored), mine)) is not None:
        raise StoreError(
            f"The run in {folder} was begun with another '{changed}': resume it with the settings in {stored}, "
            "or choose another --out folder."
        )
    write_json(stored, mine)
    return (folder / RESUME).exists()


def _changed(old: Any, new: Any, name: str = "") -> str | None:
    """The first setting that differs, those of `FREE` apart."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted((set(old) | set(new)) - FREE.get(name, frozenset()))
        return next((each for key in keys if (each := _changed(old.get(key), new.get(key), key)) is not None), None)
    return None if old == new else name


class Begun(NamedTuple):
    """How far a run had come that broke off; zeros for none."""

    step: int = 0
    steps: int = 0


NOT_BEGUN = Begun()


def policy_folder(weights: Path) -> Path:
    """Where the policy lies: in a run's folder, or in the one that is given."""
    return weights / POLICY if (weights / POLICY).is_dir() else weights


def weights_sha(weights: Path) -> str:
    """Of a policy's numbers: it names what was computed from them."""
    return hashlib.sha256((policy_folder(weights) / "model.safetensors").read_bytes()).hexdigest()


def start_from(weights: Path, stage: str) -> tuple[Policy, Begun]:
    """A policy from a folder of weights (or of a run), and where to go on: at a step where this stage broke off."""
    folder = policy_folder(weights)
    notes = read_config(folder)["notes"]
    policy = load_policy(folder)
    broke_off = notes.get("stage") == stage and notes.get("step", 0) < notes.get("steps", 0)
    begun = Begun(int(notes["step"]), int(notes["steps"])) if broke_off else NOT_BEGUN
    log.info("weights of %s: %s, step %d", folder, notes.get("stage", "unknown stage"), begun.step)
    return policy, begun


def save(folder: Path, task: Task, optimiser: torch.optim.Optimizer, step: int, begun: int) -> None:
    """A checkpoint of this step: the exact one first, then the weights for others to read."""
    buffer = io.BytesIO()
    state = {"step": step, "begun": begun, "weights": task.policy.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save(state, buffer)
    write_atomic(folder / RESUME, buffer.getvalue())
    notes = {"stage": task.stage, "step": step, "steps": task.steps}
    save_policy(task.policy, folder / POLICY, notes=notes)


def _restore(folder: Path, task: Task, optimiser: torch.optim.Optimizer) -> tuple[int, int]:
    device = next(task.policy.parameters()).device
    state = torch.load(folder / RESUME, map_location=device, weights_only=True)
    task.policy.load_state_dict(state["weights"])
    if state["step"] < task.steps:
        try:
            optimiser.load_state_dict(state["optimiser"])
        except ValueError as error:
            raise StoreError(
                f"The checkpoint in {folder} is of a version with other parameters ({error}): go on from its weights, "
                f"in another --out folder, with --weights {folder}."
            ) from error
    for name in (LOSSES, CHECKS):  # lines of steps that will be done again
        keep_jsonl(folder / name, lambda line: line["step"] <= state["step"])
    return int(state["step"]), int(state["begun"])


# ── The loop ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Start:
    """Where a run begins, and what its budget has paid for before the first step."""

    resume: bool = False
    """from the folder's checkpoint"""
    begun: Begun = NOT_BEGUN
    """otherwise at this step, with the policy's weights as they are"""
    clock_s: float = dataclasses.field(default_factory=time.monotonic)
    """when the stage began"""


def run(task: Task, config: LoopConfig, folder: Path, start: Start, watch: Watch | None = None) -> Finished:
    """Train to the last step or until the time is up."""
    if device_of(config.device).type == "cuda":
        torch.set_float32_matmul_precision("high")  # the logits are float32: TF32 makes them seven times as fast
    optimiser = make_optimiser(task.policy, config)
    step = begun = start.begun.step
    if step and not start.resume and start.begun.steps != task.steps:
        raise StoreError(
            f"The weights are of a run that broke off at step {step} of {start.begun.steps}, and this run has "
            f"{task.steps} steps, so it is another one: let that one come to its end first, or give other weights."
        )
    if start.resume:
        step, begun = _restore(folder, task, optimiser)
    book = _Book(folder, task, config, step, watch)
    began = saved = time.monotonic()
    if config.check_first and not step:
        book.check(step)
    while step < task.steps:
        if config.budget_s and time.monotonic() - start.clock_s > config.budget_s:
            break
        for group in optimiser.param_groups:
            group["lr"] = rate(config, step, task.steps, begun)
        task.policy.train()
        found = task.loss(step)
        optimiser.zero_grad(set_to_none=True)
        found.loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(task.policy.parameters(), config.clip)
        optimiser.step()
        step += 1
        book.note(step, found, norm, optimiser.param_groups[0]["lr"])
        if step % config.check_every == 0 or step == task.steps:
            book.check(step)
        if time.monotonic() - saved > config.save_every_s and step < task.steps:
            save(folder, task, optimiser, step, begun)
            saved = time.monotonic()
    if step < task.steps or not start.resume or book.tokens:  # a finished run that is called again is left alone
        save(folder, task, optimiser, step, begun)
    book.close()
    return Finished(folder, step, task.steps, book.tokens, time.monotonic() - began, book.checks)


class _Book:
    """Curves on disk and on TensorBoard; looks at the loss only every `log_every` steps, as that waits for the GPU."""

    def __init__(self, folder: Path, task: Task, config: LoopConfig, step: int, watch: Watch | None) -> None:
        self._folder, self._task, self._config, self._watch = folder, task, config, watch
        self.tokens = self._since = 0
        self._at, self._board = time.monotonic(), board(folder / "tensorboard", step)
        earlier = read_jsonl(folder / CHECKS)
        self.checks: dict[str, float] = {k: v for k, v in earlier[-1].items() if k != "step"} if earlier else {}

    def note(self, step: int, found: Step, norm: Tensor, learning_rate: float) -> None:
        self.tokens += found.tokens
        self._since += found.tokens
        if step % self._config.log_every and step != self._task.steps:
            return
        loss = float(found.loss.detach())
        if not math.isfinite(loss):
            raise StoreError(
                f"The loss of step {step} is {loss}: training went astray. Begin again from the last checkpoint "
                f"(--weights {self._folder}) with a lower learning rate than {self._config.learning_rate}."
            )
        speed = self._since / max(1e-9, time.monotonic() - self._at)
        line = {"step": step, "loss": loss, **{k: float(v.detach()) for k, v in found.parts.items()}}
        line |= {"norm": float(norm), "learning_rate": learning_rate}
        append_jsonl(self._folder / LOSSES, {**line, "tokens_per_s": round(speed)})
        self._draw(step, {**line, "tokens_per_s": speed})
        if self._watch:
            self._watch(Progress(self._task.stage, step, self._task.steps, loss, speed, self.checks))
        self._since, self._at = 0, time.monotonic()

    def check(self, step: int) -> None:
        self._task.policy.eval()
        with torch.no_grad():
            self.checks = self._task.check()
        append_jsonl(self._folder / CHECKS, {"step": step, **self.checks})
        self._draw(step, self.checks)
        log.info("%s step %d: %s", self._task.stage, step, self.checks)
        self._since, self._at = 0, time.monotonic()  # the look is not counted as training time

    def _draw(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if self._board is not None and name != "step":
                self._board.add_scalar(f"{self._task.stage}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def board(folder: Path, step: int) -> Any:
    """A TensorBoard writer, or None where tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.warning("No TensorBoard curves: install sparserl[train]. The same figures are in %s.", LOSSES)
        return None
    return SummaryWriter(str(folder), purge_step=step)  # type: ignore[no-untyped-call]
