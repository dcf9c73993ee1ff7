"""regard as people call it: the engine that it chooses by itself."""

from functools import partial

from peers import on_regard

NAME = "regard"
output = partial(on_regard.output, "auto")
statistics = partial(on_regard.statistics, "auto")
gradients = partial(on_regard.gradients, "auto")
