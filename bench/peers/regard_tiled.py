"""regard on its portable engine, which is made of torch operations."""

from functools import partial

from peers import on_regard

NAME = "regard tiled"
output = partial(on_regard.output, "tiled")
statistics = partial(on_regard.statistics, "tiled")
gradients = partial(on_regard.gradients, "tiled")
