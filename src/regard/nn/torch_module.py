"""Multi-head attention as `torch.nn.MultiheadAttention` holds it, read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from regard.nn.multi_head_attention import MultiHeadAttention


def arguments_of(module: nn.MultiheadAttention) -> dict[str, Any]:
    """The arguments of the `MultiHeadAttention` that computes what torch's module computes."""
    if not isinstance(module, nn.MultiheadAttention):
        raise ArgumentTypeError(
            f"`module` must be a torch.nn.MultiheadAttention, got a {type(module).__name__}"
        )
    if module.bias_k is not None or module.add_zero_attn:
        which = "add_bias_kv" if module.bias_k is not None else "add_zero_attn"
        raise ArgumentError(
            f"`module` must be without {which}, which adds a key that stands at no position and that no mask "
            "speaks of"
        )
    weight = module.out_proj.weight
    widths = module.kdim, module.vdim
    return {
        "embed_dim": module.embed_dim,
        "num_heads": module.num_heads,
        "context_dim": None if widths == (module.embed_dim,) * 2 else widths,
        "bias": module.in_proj_bias is not None,
        "dropout": module.dropout,
        "device": weight.device,
        "dtype": weight.dtype,
    }


def copy_from(module: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    """Copy the weights of torch's module."""
    ours.load_state_dict(_separate(module))
    ours.train(module.training)


def copy_to(ours: MultiHeadAttention, batch_first: bool) -> nn.MultiheadAttention:
    """torch's module with the same weights; raises naming what it has no place for."""
    _refuse_what_torch_lacks(ours)
    weight = ours.output_projection.weight
    module = nn.MultiheadAttention(
        ours.embed_dim,
        ours.num_heads,
        dropout=ours.dropout,
        bias=ours.query_projection.bias is not None,
        kdim=ours.key_projection.in_features,
        vdim=ours.value_projection.in_features,
        batch_first=batch_first,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        for name, tensor in _separate(module).items():
            # Views of torch's own parameters: writing them fills the packed ones too.
            tensor.copy_(ours.get_parameter(name))
    return module.train(ours.training)


def _separate(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """torch's parameters under our names, as views where torch packs three in one."""
    names = ("query_projection", "key_projection", "value_projection")
    packed = module.in_proj_weight
    weights = (
        packed.detach().chunk(3)
        if packed is not None
        else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    )
    state = {f"{name}.weight": weight.detach() for name, weight in zip(names, weights, strict=True)}
    state["output_projection.weight"] = module.out_proj.weight.detach()
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.detach().chunk(3)
        state |= {f"{name}.bias": bias for name, bias in zip(names, biases, strict=True)}
        state["output_projection.bias"] = module.out_proj.bias.detach()
    return state


def _refuse_what_torch_lacks(ours: MultiHeadAttention) -> None:
    plain_dim = ours.embed_dim // ours.num_heads
    output_bias = ours.output_projection.bias is not None
    lacks = {
        f"heads of {plain_dim} channels only": (ours.head_dim, ours.value_dim) != (plain_dim, plain_dim),
        "no grouped heads": ours.num_key_heads != ours.num_heads,
        "a bias in all projections or in none": output_bias != (ours.query_projection.bias is not None),
        "no qk_norm": ours.query_norm is not None,
        "no rotary positions": ours.rotary is not None,
        "no mask of its own": ours.mask is not None,
        "no score_bias": ours.score_bias is not None,
        "no scale of its own": ours.scale is not None,
        "no softcap": ours.softcap is not None,
        "no sinks": ours.sink_logits is not None,
    }
    for what, missing in lacks.items():
        if missing:
            raise ArgumentError(f"this module cannot become torch.nn.MultiheadAttention, which has {what}")
