"""The language half of a policy: a Llama-shaped causal transformer in plain torch.

RMS norms, rotary positions, grouped-query attention, SwiGLU, tied embeddings. The parameter names are those of
transformers' LlamaForCausalLM, so `state_dict()` loads into it, and its weights load here (`llama_config` says with
which configuration). Vectors that do not come from tokens (the matrix prefix) may stand before the tokens; they take
the first positions. Under autocast the residual stream, the norms and the logits stay in float32.

Not here: the loss (each training stage has its own), dropout, rotary scaling, decoding with a cache (`decoding.py`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

KeysValues = list[tuple[Tensor, Tensor]]
"""one (keys, values) a layer, each (batch, kv_heads, tokens, head_width), keys already rotated"""


@dataclass(frozen=True)
class Shape:
    """The sizes of a language model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    """heads of keys and values; each serves heads / kv_heads query heads"""
    inner: int
    """width inside the SwiGLU"""
    vocabulary: int = 8192
    context: int = 3072
    """most positions, prefix included"""
    rope_base: float = 10000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"The 'width' of a Shape must be an even multiple of 'heads'. Got {self.width} and {self.heads}."
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"The 'heads' of a Shape must be a multiple of 'kv_heads'. Got {self.heads} and {self.kv_heads}."
            )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def llama_config(self) -> dict[str, Any]:
        """The arguments of a transformers.LlamaConfig of the same shape."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (context, head_width / 2), float32; made in float64, as far positions need it."""
    half = shape.head_width // 2
    turns = shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(shape.context, dtype=torch.float64)[:, None] * turns
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in float32. x: (…, head_width); cos, sin: broadcastable to (…, head_width / 2)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Matrix(nn.Linear):
    """A linear map without bias. Its numbers are not drawn when it is made: `Language.initialise` draws them, once."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: drawing numbers that a checkpoint replaces would be most of the time of a load."""


class Table(nn.Embedding):
    """A table of vectors, not drawn when it is made, as `Matrix`."""

    def reset_parameters(self) -> None:
        """Nothing, as in `Matrix`."""


class Attention(nn.Module):
    """Grouped-query attention over all that stands before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.kv_heads * shape.head_width
        self.q_proj = Matrix(shape.width, shape.width)
        self.k_proj = Matrix(shape.width, narrow)
        self.v_proj = Matrix(shape.width, narrow)
        self.o_proj = Matrix(shape.width, shape.width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keep: KeysValues | None) -> Tensor:
        batch, tokens, width = x.shape
        head = self.shape.head_width
        q = self.q_proj(x).view(batch, tokens, -1, head).transpose(1, 2)  # (batch, heads, tokens, head_width)
        k = self.k_proj(x).view(batch, tokens, -1, head).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, -1, head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if keep is not None:
            keep.append((k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return out


class SwiGLU(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Matrix(shape.width, shape.inner)
        self.up_proj = Matrix(shape.width, shape.inner)
        self.down_proj = Matrix(shape.inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.mlp = SwiGLU(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keep: KeysValues | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, keep)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """The transformer without its head; it exists so that parameters are called 'model.…', as in transformers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = Table(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)


class Language(nn.Module):
    """`forward(ids, prefix)` gives logits for the token positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, empty: bool = False) -> None:
        """empty: leave the parameters as the memory was found, for stored ones to replace."""
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = Matrix(shape.width, shape.vocabulary)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.tie()
        if not empty:
            self.initialise()

    def tie(self) -> None:
        """The head is the embedding; to be said again after weights were assigned rather than copied."""
        self.lm_head.weight = self.model.embed_tokens.weight

    def initialise(self) -> None:
        """Fresh weights: normal(0.02), what ends in the residual stream smaller by the number of its summands."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.shape.layers) if ends else 0.02)
            else:
                nn.init.ones_(parameter)

    def hidden(self, vectors: Tensor, keep: KeysValues | None = None) -> Tensor:
        """The normed last hidden states of vectors at positions 0, 1, …; `keep` collects every layer's keys and values.

        vectors: (batch, positions, width).
        """
        positions = vectors.shape[1]
        if positions > self.shape.context:
            raise ValueError(
                f"A Language with context {self.shape.context} was given {positions} positions (prefix and tokens): "
                "cut the tokens, or make a model with a longer context."
            )
        cos, sin = self.cos[:positions], self.sin[:positions]
        x = vectors
        for layer in self.model.layers:
            x = layer(x, cos, sin, keep)
        out: Tensor = self.model.norm(x)
        return out

    def head(self, hidden: Tensor) -> Tensor:
        """Logits in float32, under autocast too: bfloat16 keeps three digits, too few for log-probabilities."""
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.lm_head.weight.float())

    def forward(self, ids: Tensor, prefix: Tensor | None = None) -> Tensor:
        """ids: (batch, tokens); prefix: (batch, prefix, width) or None. Returns (batch, tokens, vocabulary)."""
        return self.head(self.states(ids, prefix))

    def states(self, ids: Tensor, prefix: Tensor | None = None) -> Tensor:
        """The same before the head: (batch, tokens, width)."""
        vectors = self.model.embed_tokens(ids)
        if prefix is None:
            return self.hidden(vectors)
        joined = torch.cat((prefix.to(vectors.dtype), vectors), dim=1)
        return self.hidden(joined)[:, prefix.shape[1] :]
