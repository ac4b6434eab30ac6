"""What a minimiser sees of a model: parameters, and a value that depends on them."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Problem(ABC):
    """A function of some parameters, to be minimised.

    Parameters
    ----------
    parameters : dict of str to Parameter
        What is free, by name; changed in place by the minimiser.
    floors : dict of str to float
        Smallest value of some of them.
    """

    deterministic: bool = True
    """Whether the same parameters give the same value."""

    def __init__(self, parameters: dict[str, nn.Parameter], floors: dict[str, float]) -> None:
        self.parameters = parameters
        self.floors = {name: floor for name, floor in floors.items() if name in parameters}
        self.checked = True
        """Whether factorisations are looked at as they are made; not while a graph is recorded."""
        self.jitter = 0.0
        """Largest jitter that a factorisation has needed so far."""

    @property
    def generator(self) -> torch.Generator | None:
        """What `value` draws from."""
        return None

    def prepare(self) -> bool:
        """Choose what the next `value` looks at: the batch of examples, the noise.

        Whether its size is that of a step that was recorded after `hold`.
        """
        return True

    def hold(self) -> None:
        """Keep the examples of all steps in one place of memory, where a CUDA graph reads them."""
        return None

    def place(self) -> dict[str, Tensor]:
        """Where examples and noise are, for `go_to`."""
        return {}

    def go_to(self, place: dict[str, Tensor]) -> None:
        """Go back to where `place` has told."""
        return None

    def recordable(self) -> bool:
        """Whether `value` does the same work whatever the numbers, on a device with CUDA graphs."""
        return False

    @abstractmethod
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        """The function, differentiable; one number for each member of a batch of models.

        The step is read by schedules.
        """

    def pool(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The mean of losses and gradients over the processes that share the examples."""
        return tensors

    def frame(self) -> Float[Tensor, "m m"] | None:
        """A lower triangular C such that the curvature in C⁻¹·u_mean and C⁻¹·u_chol is about 1.

        For minimisers to look at q(u) in; None where there is no q(u) among the parameters.
        """
        return None

    def at_floor(self) -> tuple[str, ...]:
        """Names of the parameters that stand at their floor."""
        return tuple(
            name
            for name, floor in self.floors.items()
            if bool((self.parameters[name].detach() <= floor).any())
        )

    def note_jitter(self, jitter: Float[Tensor, "*batch"]) -> None:
        """Remember the largest."""
        self.jitter = max(self.jitter, float(jitter.detach().max()))
