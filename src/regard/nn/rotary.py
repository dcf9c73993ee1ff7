"""Rotary positions: pairs of channels of queries and keys turned by an angle that grows with the position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, ArgumentTypeError
from regard.nn import rotary_scaling

Convention = Literal["half_split", "interleaved"]


class RotaryEmbedding(nn.Module):
    """Rotates channel pairs by position · frequency, so that a score depends on the distance of its pair.

    Pair i of `dim` channels turns by base^(−2i / dim) radians a position (Su et al. 2021, "RoFormer").

    Args:
        dim: how many channels are rotated, even: the first `dim` of each head; the others pass through.
        base: the wavelengths go up to 2π · base positions.
        convention: which channels make pair i. `"half_split"`: i and i + dim/2 (GPT-NeoX, and Llama as
            transformers stores it). `"interleaved"`: 2i and 2i + 1 (the paper, GPT-J, and Llama as Meta
            stores it). They differ by a permutation of channels; weights trained for one need that one.
        scaling: how frequencies are stretched for longer contexts, as transformers' configurations say it: a
            mapping with `"rope_type"` one of `"linear"`, `"dynamic"` (NTK), `"yarn"`, `"llama3"` or
            `"default"`, and that type's numbers; `"dynamic"` needs `"original_max_position_embeddings"` too.

    It has no parameters and leaves nothing in a state_dict. Frequencies and angles stay in float32 (float64
    for float64 inputs) whatever the model is cast to: in bfloat16, far positions would share their angles.

    >>> rotary = RotaryEmbedding(64, base=500_000.0)
    >>> rotary(torch.randn(1, 8, 10, 64)).shape
    torch.Size([1, 8, 10, 64])
    """

    inverse_frequencies: Tensor

    def __init__(
        self,
        dim: int,
        base: float = 10_000.0,
        *,
        convention: Convention = "half_split",
        scaling: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ArgumentError(f"`dim` must be an even number of channels, at least 2, got {dim!r}")
        if not base > 1:
            raise ArgumentError(f"`base` must be greater than 1, got {base!r}")
        if convention not in ("half_split", "interleaved"):
            raise ArgumentError(f"`convention` must be 'half_split' or 'interleaved', got {convention!r}")
        self.dim, self.base, self.convention = dim, float(base), convention
        self._scaling = rotary_scaling.parse(scaling)
        self.register_buffer(
            "inverse_frequencies", self._frequencies(torch.empty(0, device=device).device), persistent=False
        )

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Queries or keys `[..., heads, N, head_dim]`, rotated, in their own dtype.

        `positions` is `[N]`, or `[B, N]` for `x` `[B, heads, N, head_dim]`; 0 to N − 1 by default. With
        dynamic scaling the frequencies follow from the largest of the positions given here.
        """
        if x.dim() < 2 or x.shape[-1] < self.dim:
            raise ArgumentError(
                f"`x` must have shape (..., positions, at least {self.dim} channels), got {tuple(x.shape)}"
            )
        positions = self._checked(x, positions)
        dtype = torch.promote_types(x.dtype, torch.float32)
        frequencies = self.inverse_frequencies
        if self._scaling.needs_length and positions.numel():
            frequencies = self._frequencies(x.device, positions.max() + 1)
        angles = positions.to(dtype).unsqueeze(-1) * frequencies.to(dtype)
        angles = angles.unsqueeze(1) if positions.dim() == 2 else angles
        cosine = angles.cos() * self._scaling.magnitude
        sine = angles.sin() * self._scaling.magnitude
        turned = self._rotate(x[..., : self.dim].to(dtype), cosine, sine).to(x.dtype)
        return turned if x.shape[-1] == self.dim else torch.cat([turned, x[..., self.dim :]], -1)

    def _rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        if self.convention == "half_split":
            first, second = x.chunk(2, -1)
            return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
        first, second = x[..., 0::2], x[..., 1::2]
        pairs = [first * cosine - second * sine, second * cosine + first * sine]
        return torch.stack(pairs, -1).flatten(-2)

    def _checked(self, x: Tensor, positions: Tensor | None) -> Tensor:
        n_positions = x.shape[-2]
        if positions is None:
            return torch.arange(n_positions, device=x.device)
        if not isinstance(positions, Tensor) or positions.dtype == torch.bool or positions.is_complex():
            kind = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
            raise ArgumentTypeError(f"`positions` must be a tensor of numbers, got {kind}")
        fits = [(n_positions,), (x.shape[0], n_positions)] if x.dim() == 4 else [(n_positions,)]
        if tuple(positions.shape) not in fits:
            raise ArgumentError(
                f"`positions` must have shape {' or '.join(map(str, fits))}, got {tuple(positions.shape)}"
            )
        return positions.to(x.device)

    def _frequencies(self, device: torch.device, length: Tensor | None = None) -> Tensor:
        return self._scaling.frequencies(self.dim, self.base, device, length)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """What moves or casts the model moves the frequencies, and makes them anew in float32."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.inverse_frequencies = self._frequencies(self.inverse_frequencies.device)
        return self

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        return f"{self.dim}, base={self.base:g}, convention={self.convention!r}, scaling={self._scaling}"
