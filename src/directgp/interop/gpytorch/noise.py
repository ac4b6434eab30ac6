"""Noise whose parameters belong to a GPyTorch likelihood, under the formulas of directgp."""

from typing import final

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.gaussian import GaussianNoise
from directgp.likelihoods.student_t import StudentTNoise

Values = Float[Tensor, "..."]


@final
class GivenGaussian(GaussianNoise):
    """N(y; f, σ²) with σ² of a shape that broadcasts to that of the examples."""

    given_noise: Tensor

    def __init__(self, noise: Values) -> None:
        super().__init__()
        # A buffer may be part of a graph, which then leads to the parameters it came from.
        self.register_buffer("given_noise", noise.double())

    @property
    @override
    def noise(self) -> Tensor:
        return self._per_example(self.given_noise)


@final
class GivenStudentT(StudentTNoise):
    """t_ν((y−f)/σ)/σ with ν and σ of shapes that broadcast to that of the examples."""

    given_df: Tensor
    given_scale: Tensor

    def __init__(self, df: Values, scale: Values) -> None:
        super().__init__()
        self.register_buffer("given_df", df.double())
        self.register_buffer("given_scale", scale.double())

    @property
    @override
    def df(self) -> Tensor:
        return self._per_example(self.given_df)

    @property
    @override
    def scale(self) -> Tensor:
        return self._per_example(self.given_scale)
