"""A multivariate normal whose variances are as computed and whose draws never fail."""

from typing import final

from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DenseLinearOperator, TriangularLinearOperator
from torch import Tensor
from typing_extensions import override

from directgp.numerics.cholesky import jittered_cholesky


@final
class Covariance(DenseLinearOperator):
    """A covariance that may be singular but for rounding, as of an input that is there twice.

    The jitter of its factor is relative to the variances, so that it suits any units; gpytorch's
    own is 1e-8 to 1e-6 of whatever unit, and comes with a warning. The covariance has none of it.
    """

    @override
    def _cholesky(self, upper: bool | None = False) -> TriangularLinearOperator:
        L = jittered_cholesky(self.tensor).factor
        return TriangularLinearOperator(L.mT if upper else L, upper=bool(upper))


@final
class Normal(MultivariateNormal):
    """gpytorch's normal without its floor of 1e-10 below every variance, whatever its unit."""

    @property
    @override
    def variance(self) -> Tensor:
        variance: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return variance
