"""Models that compute with regard, held against themselves in more precision."""

from contextlib import nullcontext

import torch

import regard
from regard.testing import assert_within_budget


def results(model, inputs, options, dtype, **used):
    """The output and the gradients of inputs and parameters, in a precision, with or without regard."""
    model = model.to(dtype)
    model.zero_grad()
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in inputs]
    options = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in options.items()
    }
    with torch.enable_grad():
        with regard.use(**used) if used else nullcontext():
            output = model(*leaves, **options)
        output = output if isinstance(output, torch.Tensor) else output[0]
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
        (output * weights.to(dtype)).sum().backward()
    gradients = [leaf.grad for leaf in leaves]
    gradients += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [output.detach(), *(gradient.clone() for gradient in gradients)]


def assert_same(model, *inputs, dtypes=(torch.float32, torch.bfloat16), **options):
    """Output and gradients computed with regard are as near to the exact ones as torch's own."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for dtype in dtypes:
        model.to(dtype).load_state_dict(start)
        inputs_of_dtype = [tensor.to(dtype) for tensor in inputs]
        rounded = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        own = results(model, inputs_of_dtype, options, dtype)
        ours = results(model, inputs_of_dtype, options, dtype, engine="auto")
        model.double().load_state_dict(rounded)
        exact = results(model, inputs_of_dtype, options, torch.float64)
        for one, true, theirs in zip(ours, exact, own, strict=True):
            assert_within_budget(one, true, theirs)
    model.float().load_state_dict(start)
