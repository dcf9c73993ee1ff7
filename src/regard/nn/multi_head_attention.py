"""The whole attention layer: learnable W_Q, W_K, W_V and W_O around `regard.attention`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.biases import Bias
from regard.compiling import outside_graphs
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks import Mask, padding
from regard.nn import torch_module
from regard.nn.checks import as_mask, both, check_size
from regard.nn.kv_cache import KVCache, Lengths
from regard.nn.reach import reach_of
from regard.nn.rotary import RotaryEmbedding
from regard.weights import AttentionWeights


class MultiHeadAttention(nn.Module):
    """Multi-head attention: heads that each attend with projections of their own, joined by W_O.

    With x `[..., N, D]`, query head h computes softmax(Q_h K_gᵀ · scale) V_g, where Q = x W_Q, K = x W_K and
    V = x W_V are split into heads and g = h // (num_heads // num_key_heads); the heads side by side times W_O
    are the output `[..., N, D]`. Vaswani et al. 2017, "Attention is all you need", section 3.2.2.

    Args:
        embed_dim: D, the width of input and output.
        num_heads: query heads, Hq.
        num_key_heads: key and value heads, Hkv, a divisor of `num_heads`; as many by default. Fewer are
            grouped heads, one is multi-query attention.
        head_dim: E, channels of a query and of a key; embed_dim / num_heads by default.
        value_dim: Ev, channels of a value; `head_dim` by default.
        context_dim: the width of the context of cross-attention, or a pair: of what keys and of what values
            are made from. `embed_dim` by default.
        bias: whether W_Q, W_K and W_V add a bias. output_bias: whether W_O does; `bias` by default.
        qk_norm: RMS-normalise each head's query and key, with a learned weight `[E]` and `norm_eps`.
        rotary: a `RotaryEmbedding` for queries and keys, after the norm. Layers may share one.
        mask: who may attend whom, in every call; a call's own mask can only take away from it.
        score_bias: a value from `regard.biases`, such as `biases.alibi(num_heads)`. If its tensor is an
            `nn.Parameter`, it is this module's parameter `score_bias_parameter`.
        scale, softcap: as in `regard.attention`.
        sinks: learn a `sink_logits` `[Hq]` that takes part in each head's denominator.
        dropout: probability of dropping a weight, in training mode.
        engine: as in `regard.attention`.
        device, dtype: of the parameters.

    W_Q, W_K, W_V and W_O start as Xavier-uniform matrices, each on its own; biases and sink logits start at
    0, norm weights at 1. In a state_dict: `query_projection`, `key_projection`, `value_projection` and
    `output_projection`, each `.weight` and `.bias`; `query_norm.weight`, `key_norm.weight`, `sink_logits`,
    `score_bias_parameter`, where there are any. Head h owns rows h · E to (h + 1) · E − 1 of W_Q's weight.

    >>> layer = MultiHeadAttention(512, 8, num_key_heads=2, mask=masks.causal())
    >>> out, weights = layer(torch.randn(4, 100, 512), return_weights=True)
    >>> out.shape, weights.shape, weights[0, 3, 99].shape
    (torch.Size([4, 100, 512]), torch.Size([4, 8, 100, 100]), torch.Size([100]))
    """

    sink_logits: nn.Parameter | None
    score_bias_parameter: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_key_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        context_dim: int | tuple[int, int] | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        rotary: RotaryEmbedding | None = None,
        mask: Mask | None = None,
        score_bias: Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("embed_dim", embed_dim)
        check_size("num_heads", num_heads)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        check_size("num_key_heads", num_key_heads)
        if num_heads % num_key_heads:
            raise ArgumentError(f"`num_key_heads` must divide `num_heads`, {num_heads}, got {num_key_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise ArgumentError(
                f"`num_heads` must divide `embed_dim`, {embed_dim}, or `head_dim` be given, got {num_heads}"
            )
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        value_dim = head_dim if value_dim is None else value_dim
        widths = (embed_dim, embed_dim) if context_dim is None else context_dim
        key_width, value_width = (widths, widths) if isinstance(widths, int) else widths
        sizes = {"head_dim": head_dim, "value_dim": value_dim, "context_dim": min(key_width, value_width)}
        for name, size in sizes.items():
            check_size(name, size)
        kinds = {
            "rotary": (rotary, RotaryEmbedding, "a RotaryEmbedding"),
            "mask": (mask, Mask, "a mask from regard.masks"),
            "score_bias": (score_bias, Bias, "a bias from regard.biases"),
        }
        for name, (given, wanted, words) in kinds.items():
            if given is not None and not isinstance(given, wanted):
                raise ArgumentTypeError(f"`{name}` must be {words}, got a {type(given).__name__}")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"`dropout` must be between 0 and 1, got {dropout}")
        if rotary is not None and rotary.dim > head_dim:
            raise ArgumentError(
                f"`rotary` must rotate at most head_dim = {head_dim} channels, got {rotary.dim}"
            )
        self.embed_dim, self.num_heads, self.num_key_heads = embed_dim, num_heads, num_key_heads
        self.head_dim, self.value_dim, self.dropout = head_dim, value_dim, dropout
        self.mask, self.scale, self.softcap, self.engine = mask, scale, softcap, engine

        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query_projection = nn.Linear(embed_dim, num_heads * head_dim, bias, **kind)
        self.key_projection = nn.Linear(key_width, num_key_heads * head_dim, bias, **kind)
        self.value_projection = nn.Linear(value_width, num_key_heads * value_dim, bias, **kind)
        output_bias = bias if output_bias is None else output_bias
        self.output_projection = nn.Linear(num_heads * value_dim, embed_dim, output_bias, **kind)
        self.query_norm = nn.RMSNorm(head_dim, norm_eps, **kind) if qk_norm else None
        self.key_norm = nn.RMSNorm(head_dim, norm_eps, **kind) if qk_norm else None
        self.rotary = rotary
        self.register_parameter(
            "sink_logits", nn.Parameter(torch.empty(num_heads, **kind)) if sinks else None
        )
        self._score_bias = score_bias
        parameter = None if score_bias is None else score_bias.parameter
        self.register_parameter(
            "score_bias_parameter", parameter if isinstance(parameter, nn.Parameter) else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew; set biases and sink logits to 0 and norm weights to 1."""
        for projection in (
            self.query_projection,
            self.key_projection,
            self.value_projection,
            self.output_projection,
        ):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.sink_logits is not None:
            nn.init.zeros_(self.sink_logits)

    def forward(
        self,
        x: Tensor,
        context: Tensor | tuple[Tensor, Tensor] | None = None,
        mask: Mask | Tensor | None = None,
        cache: KVCache | None = None,
        return_weights: bool = False,
        *,
        lengths: Lengths | None = None,
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """Attend, from `x` to itself or to a context.

        Args:
            x: `[..., N, embed_dim]`.
            context: what keys and values are made from, `[..., M, context_dim]`, or a pair of tensors: keys
                from the first, values from the second. `x` itself by default.
            mask: who may attend whom in this call, besides the layer's own mask: a value from `regard.masks`,
                or a boolean tensor `[N, M]` or `[B or 1, Hq or 1, N, M]`, True = may attend.
            cache: from `make_cache`, with `x` `[B, N, embed_dim]` the next positions: they attend what the
                cache holds and themselves, and are held from then on.
            return_weights: also return the weights, `[..., Hq, N, M]`, as `regard.AttentionWeights`: a matrix
                that is never stored.
            lengths: `[B]`, how many of the N positions each item really has, the rest being padding on the
                right, neither attended nor cached; its rows of the output mean nothing. Without a context.

        Returns:
            `[..., N, embed_dim]`, or that and the weights.

        Raises:
            ArgumentError, ArgumentTypeError: naming the argument, what it must be and what came.
        """
        key_input, value_input = self._inputs(x, context, cache, lengths)
        query = _split(self.query_projection(x), self.num_heads)
        key = _split(self.key_projection(key_input), self.num_key_heads)
        value = _split(self.value_projection(value_input), self.num_key_heads)
        if self.query_norm is not None and self.key_norm is not None:
            # Under autocast projections give less than the norm's weight is held in.
            query = self.query_norm(query.to(self.query_norm.weight.dtype))
            key = self.key_norm(key.to(self.key_norm.weight.dtype))
        if self.rotary is not None:
            positions = None if cache is None else cache.next_positions(x.shape[-2])
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        query, key = query.to(value.dtype), key.to(value.dtype)
        output, weights = self._attend(query, key, value, mask, cache, lengths, return_weights)
        output = self.output_projection(output.transpose(-3, -2).flatten(-2))
        return output if weights is None else (output, weights)

    @outside_graphs
    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | Tensor | None,
        cache: KVCache | None,
        lengths: Lengths | None,
        return_weights: bool,
    ) -> tuple[Tensor, AttentionWeights | None]:
        options: dict[str, Any] = {
            "bias": self._bias_on(query.device),
            "scale": self.scale,
            "softcap": self.softcap,
            "sink_logits": self.sink_logits,
            "dropout_p": self.dropout if self.training else 0.0,
            "engine": self.engine,
        }
        mask = both(self.mask, as_mask(mask))
        attend: Callable[..., Any] = attention
        if cache is not None:
            attend, options["lengths"] = cache.attend, lengths
        elif lengths is not None:
            mask = both(mask, padding(lengths))
        result = attend(query, key, value, mask, return_weights=return_weights, **options)
        return result if return_weights else (result, None)

    def make_cache(self, batch_size: int, capacity: int, *, dtype: torch.dtype | None = None) -> KVCache:
        """An empty cache for this layer, for up to `capacity` positions, on its device and in its dtype.

        Where the layer's mask sees only a window (and sinks), the cache is a ring of that size, and positions
        have no limit.

        >>> layer = MultiHeadAttention(512, 8, num_key_heads=2, mask=masks.sliding_window(256))
        >>> layer.make_cache(batch_size=1, capacity=100_000).capacity
        256
        """
        check_size("capacity", capacity)
        weight, reach = self.key_projection.weight, reach_of(self.mask)
        ring = reach is not None and reach.sinks + reach.window < capacity
        return KVCache(
            batch_size,
            self.num_key_heads,
            # A ring turns in one slot at least.
            reach.sinks + max(1, reach.window) if ring and reach is not None else capacity,
            self.head_dim,
            self.value_dim,
            ring=ring,
            sinks=reach.sinks if ring and reach is not None else 0,
            dtype=weight.dtype if dtype is None else dtype,
            device=weight.device,
        )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer with copies of the weights of torch's, which gives the same numbers.

        It takes the batch first whatever `batch_first` says, and masks in which True = may attend: torch's
        boolean masks are the other way round. `add_bias_kv` and `add_zero_attn` are refused.
        """
        ours = cls(**torch_module.arguments_of(module))
        torch_module.copy_from(module, ours)
        return ours

    def to_torch(self, batch_first: bool = True) -> nn.MultiheadAttention:
        """torch's module with copies of this layer's weights, which gives the same numbers.

        Raises `ArgumentError`, naming it, if the layer has something that torch's module lacks.
        """
        return torch_module.copy_to(self, batch_first)

    @property
    def score_bias(self) -> Bias | None:
        """What is added to the scores in every call."""
        if self._score_bias is None or self.score_bias_parameter is None:
            return self._score_bias
        return replace(self._score_bias, parameter=self.score_bias_parameter)

    def _bias_on(self, device: torch.device) -> Bias | None:
        bias = self.score_bias
        return None if bias is None else replace(bias, parameter=bias.parameter.to(device))

    def _inputs(
        self,
        x: Tensor,
        context: Tensor | tuple[Tensor, Tensor] | None,
        cache: KVCache | None,
        lengths: Lengths | None,
    ) -> tuple[Tensor, Tensor]:
        """What keys and what values are made from."""
        if context is not None:
            for name, given in (("cache", cache), ("lengths", lengths), ("rotary", self.rotary)):
                if given is not None:
                    raise ArgumentError(
                        f"`context` cannot go with `{name}`, which is for `x` that attends itself"
                    )
        key_input, value_input = (
            (x, x) if context is None else context if isinstance(context, tuple) else (context, context)
        )
        widths = self.embed_dim, self.key_projection.in_features, self.value_projection.in_features
        names = ("x", "x", "x") if context is None else ("x", "context", "context")
        for name, tensor, width in zip(names, (x, key_input, value_input), widths, strict=True):
            if not isinstance(tensor, Tensor):
                raise ArgumentTypeError(f"`{name}` must be a torch.Tensor, got a {type(tensor).__name__}")
            if tensor.dim() < 2 or tensor.shape[-1] != width:
                raise ArgumentError(
                    f"`{name}` must have shape (..., positions, {width}), got {tuple(tensor.shape)}"
                )
        if cache is not None and x.dim() != 3:
            raise ArgumentError(
                f"`x` must have shape (batch, positions, {self.embed_dim}) with a cache, got {tuple(x.shape)}"
            )
        return key_input, value_input

    def extra_repr(self) -> str:
        """The arguments that no submodule shows, for `print(model)`."""
        shown = {"mask": self.mask, "score_bias": self._score_bias, "softcap": self.softcap}
        shown |= {"dropout": self.dropout or None}
        heads = f"num_heads={self.num_heads}, num_key_heads={self.num_key_heads}"
        sizes = f"head_dim={self.head_dim}, value_dim={self.value_dim}"
        return ", ".join([heads, sizes, *(f"{k}={v!r}" for k, v in shown.items() if v is not None)])


def _split(projected: Tensor, num_heads: int) -> Tensor:
    """`[..., N, heads · dim]` as `[..., heads, N, dim]`, a view."""
    *lead, width = projected.shape
    return projected.view(*lead, num_heads, width // num_heads).transpose(-3, -2)
