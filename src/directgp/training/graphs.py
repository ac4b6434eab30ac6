"""Record the work of a training step as a CUDA graph; apart from the optimisers, which share it."""

from collections.abc import Callable
from typing import Any, final

import torch

from directgp.log_expectations.elbo_term import FixedNodes, fixed_nodes
from directgp.training.problems import TrainingProblem

_WARM_UP = 3
"""Calls before a graph is recorded, in which libraries allocate their memory and the number of
quadrature nodes is learned."""


@final
class RecordedWork:
    """Work of a problem without checks, replayed from a CUDA graph.

    `nodes` is the least number of quadrature nodes in it. `prepare` of the problem is called
    outside of the graph.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        work: Callable[[], Any],
        nodes: int = 0,
        warm_up: int = _WARM_UP,
    ) -> None:
        self._nodes = FixedNodes(nodes)
        problem.batches.use_static_buffers()
        problem.checked = False
        generator = problem.randomness.generator
        state = generator.get_state()
        token = fixed_nodes.set(self._nodes)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(warm_up):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            self._nodes.record(next(iter(problem.parameters.values())).device)
            self._graph = torch.cuda.CUDAGraph()
            self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph):
                self._result = work()
        finally:
            fixed_nodes.reset(token)
            problem.checked = True
            generator.set_state(state)

    def replay(self) -> Any:
        """Do the work, and return what it returns, in memory that the next replay overwrites."""
        self._graph.replay()
        return self._result

    def outgrown(self) -> int:
        """Return the nodes that a quadrature needs next time, if it had too few; else 0."""
        return 2 * self._nodes.number if self._nodes.exceeded() else 0
