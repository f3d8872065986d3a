"""One token step for a batch of sequences, with a static key-value cache; on a GPU it is replayed as a CUDA graph.

All sequences stand at the same position, so the position is one number and the cache one block a layer. On a CPU a step
attends to exactly the positions written so far. On a GPU it attends to a window (a multiple of `WINDOW`) behind a mask,
because a captured graph can't change its shapes; there is one graph a (rows, window, way of choosing).

Numbers: matrix products and the cache in `dtype`; residual stream, norms, softmax and logits in float32, which is what
`Language` does under autocast. Not covered: sequences at different positions, more than one device.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sparserl.policy.choosing import Choice, choose
from sparserl.policy.language import KeysValues, Language, Layer, Shape, rotate

WINDOW, WIDER = 256, 4
"""positions by which the attended part of the cache grows on a GPU, and how many times as many for `FEW_ROWS` and
fewer: growth costs a capture, waste costs bandwidth"""
FEW_ROWS = 64
FEWEST_ROWS = 16
"""a GPU batch is not halved below this: smaller ones are no faster"""


def windowed(device: torch.device) -> bool:
    """Whether steps keep to fixed shapes (windows, halvings of the batch), as graphs need."""
    return device.type == "cuda"


@dataclass
class LayerWeights:
    """A layer's matrices as a step wants them, (in, out): query, key and value in one, gate and up in one."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    norm_attention: Tensor
    norm_mlp: Tensor


class StepWeights:
    """A copy of a language model's weights. `refresh` copies in place, so captured graphs see what training changed.

    Matrices are stored (in, out): on a CPU with OpenBLAS a product of 16 rows is then twice as fast as `F.linear`.
    """

    def __init__(self, language: Language, dtype: torch.dtype) -> None:
        self.shape: Shape = language.shape
        self.dtype = dtype
        self.copied: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        self.layers = [self._layer(layer) for layer in language.model.layers]
        table = language.model.embed_tokens.weight
        self.embedding = torch.empty_like(table, dtype=torch.float32, requires_grad=False)  # (vocabulary, width)
        self.head = self._matrix(torch.float32, table)  # (width, vocabulary)
        self.norm = torch.empty_like(language.model.norm.weight, dtype=torch.float32, requires_grad=False)
        self.language = language
        self.cos, self.sin = language.cos, language.sin
        self.refresh()

    def _layer(self, layer: nn.Module) -> LayerWeights:
        assert isinstance(layer, Layer)
        attention, mlp = layer.self_attn, layer.mlp
        width, device = self.shape.width, attention.q_proj.weight.device
        return LayerWeights(
            self._matrix(self.dtype, attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight),
            self._matrix(self.dtype, attention.o_proj.weight),
            self._matrix(self.dtype, mlp.gate_proj.weight, mlp.up_proj.weight),
            self._matrix(self.dtype, mlp.down_proj.weight),
            torch.empty(width, device=device),
            torch.empty(width, device=device),
        )

    def _matrix(self, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        out = sum(part.shape[0] for part in parts)
        made = torch.empty((parts[0].shape[1], out), dtype=dtype, device=parts[0].device)
        self.copied.append((made, parts))
        return made

    @torch.no_grad()
    def refresh(self) -> None:
        for made, parts in self.copied:
            first = 0
            for part in parts:
                made[:, first : first + part.shape[0]] = part.t()
                first += part.shape[0]
        for own, layer in zip(self.layers, self.language.model.layers, strict=True):
            assert isinstance(layer, Layer)
            own.norm_attention.copy_(layer.input_layernorm.weight)
            own.norm_mlp.copy_(layer.post_attention_layernorm.weight)
        self.embedding.copy_(self.language.model.embed_tokens.weight)
        self.norm.copy_(self.language.model.norm.weight)


class Decoder:
    """The buffers of up to `rows` sequences of up to `capacity` positions and `steps` written tokens.

    `begin` loads sequences, `step` writes one token to each, `compact` drops those that have ended.
    The tables (noise, forced, ids, log-probabilities) keep a line a sequence; `line` says which one a live row is.
    """

    def __init__(self, weights: StepWeights, rows: int, capacity: int, steps: int) -> None:
        shape, device = weights.shape, weights.embedding.device
        self.weights = weights
        self.window = WINDOW if rows > FEW_ROWS else WIDER * WINDOW
        self.rows, self.capacity, self.steps = rows, -(-capacity // self.window) * self.window, steps
        block = (shape.layers, rows, shape.kv_heads, self.capacity, shape.head_width)
        # Zeros, not garbage: a masked NaN times a weight of zero would still be NaN.
        self.keys = torch.zeros(block, dtype=weights.dtype, device=device)
        self.values = torch.zeros(block, dtype=weights.dtype, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.line = torch.arange(rows, device=device)
        self.allowed = torch.ones(rows, shape.vocabulary, dtype=torch.bool, device=device)
        self.noise = torch.zeros(rows, steps, device=device)
        self.code = torch.zeros(rows, dtype=torch.float64, device=device)
        self.forced = torch.full((rows, steps), -1, dtype=torch.long, device=device)
        self.ids = torch.zeros(rows, steps, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(rows, steps, device=device)
        self.sampled_log_probs = torch.zeros(rows, steps, device=device)
        self.position_index = torch.zeros(1, dtype=torch.long, device=device)
        self.step_index = torch.zeros(1, dtype=torch.long, device=device)
        self.position = 0
        self.live = rows
        self.windowed = windowed(device)
        self.side: torch.cuda.Stream | None = None
        self.graphs: dict[tuple[int, int, bool, Choice], torch.cuda.CUDAGraph] = {}

    def begin(
        self, prompt: KeysValues, matrix_of: Tensor, last: Tensor, *, code: Tensor, noise: Tensor, forced: Tensor
    ) -> None:
        """Load sequences: `prompt` is the cache of each matrix, `matrix_of[row]` which one a row continues.

        last: (rows,) the given token that the first step reads; code: (rows,) float64 in [0, 1); noise, forced:
        (rows, steps), forced -1 where free. A token is chosen by the sum of code and noise, and leaves the next code.
        """
        count = matrix_of.shape[0]
        self.position = prompt[0][0].shape[2]
        for layer, (keys, values) in enumerate(prompt):
            self.keys[layer, :count, :, : self.position] = keys.to(self.keys.dtype)[matrix_of]
            self.values[layer, :count, :, : self.position] = values.to(self.values.dtype)[matrix_of]
        self.tokens[:count] = last
        self.done[:count] = False
        self.done[count:] = True
        self.code[:count] = code
        self.noise[:count, : noise.shape[1]] = noise
        self.forced[:count, : forced.shape[1]] = forced
        self.line.copy_(torch.arange(self.rows))
        self.position_index.fill_(self.position)
        self.step_index.zero_()
        self.live = self._fitting(count)

    def _fitting(self, count: int) -> int:
        """How many rows to run for `count` sequences: exactly those, or a halving of `rows` for graphs."""
        if not self.windowed:
            return count
        fit = self.rows
        while fit // 2 >= max(count, FEWEST_ROWS):
            fit //= 2
        return fit

    def compact(self) -> None:
        """Drop sequences that have ended, where that makes a step cheaper by a quarter or more."""
        active = torch.nonzero(~self.done[: self.live]).flatten()
        fit = self._fitting(max(1, active.numel()))
        if fit > 0.75 * self.live:
            return
        ended = torch.nonzero(self.done[: self.live]).flatten()
        kept = torch.cat((active, ended))[:fit]
        for layer in range(self.keys.shape[0]):
            for block in (self.keys[layer], self.values[layer]):
                block[:fit, :, : self.position] = block[kept, :, : self.position]
        for vector in (self.tokens, self.done, self.line):
            vector[:fit] = vector[kept]
        self.live = fit

    def step(self, choice: Choice, masked: bool = False) -> None:
        """Write the next token of every live row: read the last one, choose from its logits, record. No host sync."""
        window = self.position + 1
        if self.windowed:
            window = -(-window // self.window) * self.window
        key = (self.live, window, masked, choice)
        if self.tokens.device.type == "cuda":
            if key not in self.graphs:
                self.graphs[key] = self._captured(*key)
            self.graphs[key].replay()
        else:
            self._step(*key)
        self.position += 1

    def _captured(self, live: int, window: int, masked: bool, choice: Choice) -> torch.cuda.CUDAGraph:
        """A graph of one step. The warm-up before it does the step for real, so what it moved on is put back.

        Not `torch.cuda.graph`: that collects garbage at each capture, and a batch that shrinks captures dozens.
        """
        moved = (self.tokens, self.done, self.code, self.position_index, self.step_index)
        if self.side is None:
            self.side = torch.cuda.Stream(self.tokens.device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.tokens.device)
        self.side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        collecting = gc.isenabled()
        gc.disable()  # freeing a tensor of another graph would spoil the capture
        try:
            with torch.cuda.stream(self.side):
                before = [each.clone() for each in moved]
                self._step(live, window, masked, choice)
                for each, old in zip(moved, before, strict=True):
                    each.copy_(old)
                self.side.synchronize()
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._step(live, window, masked, choice)
                finally:
                    graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        current.wait_stream(self.side)
        return graph

    def _step(self, live: int, window: int, masked: bool, choice: Choice) -> None:
        logits = self._logits(live, window)
        line, step = self.line[:live], self.step_index
        done = self.done[:live]
        code = self.code[line]
        uniform = (code + self.noise[line, step]).frac()
        chosen = choose(logits, uniform, choice, self.allowed[:live] if masked else None)
        forced = self.forced[line, step]
        free = forced < 0
        token = torch.where(free, chosen.token, forced)
        token = torch.where(done, choice.pad, token)
        self.ids[line, step] = token
        self.log_probs[line, step] = torch.where(free, chosen.log_prob, 0.0)
        self.sampled_log_probs[line, step] = torch.where(free, chosen.sampled_log_prob, 0.0)
        self.code[line] = torch.where(free, chosen.rest, code)
        if choice.stop:
            self.done[:live] = done | (free & (token == choice.eos))
        self.tokens[:live] = token
        self.position_index += 1
        self.step_index += 1

    def _logits(self, live: int, window: int) -> Tensor:
        """The logits after the last token of each live row; its keys and values go into the cache."""
        weights, shape = self.weights, self.weights.shape
        head, both = shape.head_width, shape.heads + shape.kv_heads
        cos = weights.cos.index_select(0, self.position_index)  # (1, head_width / 2)
        sin = weights.sin.index_select(0, self.position_index)
        bias = None
        if self.windowed:
            hidden = torch.arange(window, device=self.tokens.device) > self.position_index
            bias = torch.zeros(window, dtype=weights.dtype, device=self.tokens.device).masked_fill(hidden, -torch.inf)
            bias = bias.expand(live, shape.kv_heads, shape.heads // shape.kv_heads, window)
        x = F.embedding(self.tokens[:live], weights.embedding)  # (rows, width)
        for layer, w in enumerate(weights.layers):
            h = F.rms_norm(x, (shape.width,), w.norm_attention, shape.norm_eps).to(weights.dtype)
            qkv = (h @ w.qkv).view(live, both + shape.kv_heads, head)
            qk = rotate(qkv[:, :both], cos, sin)
            keys, values = self.keys[layer, :live], self.values[layer, :live]
            keys.index_copy_(2, self.position_index, qk[:, shape.heads :, None])
            values.index_copy_(2, self.position_index, qkv[:, both:, None])
            # The query heads that share a key head stand where the queries of one head usually do.
            q = qk[:, : shape.heads].view(live, shape.kv_heads, -1, head)
            y = F.scaled_dot_product_attention(q, keys[:, :, :window], values[:, :, :window], attn_mask=bias)
            x = x + y.reshape(live, shape.width) @ w.out
            h = F.rms_norm(x, (shape.width,), w.norm_mlp, shape.norm_eps).to(weights.dtype)
            gate, up = (h @ w.gate_up).chunk(2, dim=-1)
            x = x + (F.silu(gate) * up) @ w.down
        return F.rms_norm(x, (shape.width,), weights.norm, shape.norm_eps) @ weights.head
