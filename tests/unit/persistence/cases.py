"""All parts that a model file can hold, and model states made of them."""

import math
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch import constraints as bounds
from gpytorch import kernels as k
from gpytorch import means
from torch import Tensor, nn

from directgp.likelihoods import (
    Beta,
    Binomial,
    ConwayMaxwellPoisson,
    Gamma,
    Gaussian,
    GaussianKnownNoise,
    HeteroscedasticGaussian,
    Likelihood,
    Logistic,
    LogNormal,
    NegativeBinomial,
    OrderedProbit,
    Probit,
    RobustMax,
    Softmax,
    StudentT,
    Tobit,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from directgp.likelihoods.counts import PoissonExp, PoissonSoftplus
from directgp.log_expectations import (
    BiasedMonteCarlo,
    ClosedForm,
    ProductSampling,
    Quadrature,
    Rule,
)
from directgp.objectives import (
    AbsoluteLoss,
    CRPSLoss,
    GibbsLoss,
    LogLoss,
    PinballLoss,
    PointLoss,
    SquareLoss,
    ZeroOneCost,
)
from directgp.persistence import MemberState, ModelState
from directgp.posteriors import Prior, SparsePosterior
from directgp.stack import Stack, Trees
from directgp.stack.scales import Scale
from directgp.stack.sources import FittedSource
from directgp.stack.stack import FoldedSource
from directgp.training.result import StageResult, Status

D = 3

KERNELS: dict[str, Callable[[], Any]] = {
    "rbf": lambda: k.RBFKernel(),
    "rbf ard": lambda: k.RBFKernel(ard_num_dims=D),
    "rbf of two": lambda: k.RBFKernel(ard_num_dims=2, active_dims=[2, 0]),
    "matern12": lambda: k.MaternKernel(0.5),
    "matern32": lambda: k.MaternKernel(1.5, ard_num_dims=D),
    "matern52": lambda: k.MaternKernel(2.5, active_dims=[1]),
    "scale": lambda: k.ScaleKernel(k.RBFKernel()),
    "scale of two": lambda: k.ScaleKernel(k.MaternKernel(0.5, active_dims=[0, 2])),
    "periodic": lambda: k.PeriodicKernel(),
    "periodic ard": lambda: k.PeriodicKernel(ard_num_dims=D),
    "rq": lambda: k.RQKernel(ard_num_dims=D),
    "linear": lambda: k.LinearKernel(),
    "linear ard": lambda: k.LinearKernel(ard_num_dims=D),
    "polynomial": lambda: k.PolynomialKernel(2),
    "polynomial with more": lambda: k.PolynomialKernel(power=3, ard_num_dims=D),
    "cosine": lambda: k.RBFKernel() + k.CosineKernel(active_dims=[0]),
    "constant": lambda: k.RBFKernel() + k.ConstantKernel(),
    "spectral mixture": lambda: k.SpectralMixtureKernel(num_mixtures=4, ard_num_dims=D),
    "piecewise polynomial": lambda: k.PiecewisePolynomialKernel(q=1, ard_num_dims=D),
    "sum and product": lambda: k.ScaleKernel(k.RBFKernel() + k.MaternKernel(1.5)) * k.RQKernel(),
    "bounded": lambda: k.ScaleKernel(
        k.RBFKernel(ard_num_dims=D, lengthscale_constraint=bounds.Interval(0.01, 7.3)),
        outputscale_constraint=bounds.GreaterThan(1e-4),
    ),
    "bounded above": lambda: k.RBFKernel(lengthscale_constraint=bounds.LessThan(5.5)),
    "bounded each": lambda: k.RBFKernel(
        ard_num_dims=D, lengthscale_constraint=bounds.GreaterThan(torch.tensor([0.1, 0.2, 0.3]))
    ),
}

MEANS: dict[str, Callable[[], Any]] = {
    "zero": lambda: means.ZeroMean(),
    "constant": lambda: means.ConstantMean(),
    "bounded": lambda: means.ConstantMean(constant_constraint=bounds.Interval(-2.0, 2.0)),
    "linear": lambda: means.LinearMean(D),
    "slope": lambda: means.LinearMean(D, bias=False),
}

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "gaussian": lambda: Gaussian(0.1 + 0.2),
    "gaussian of one": lambda: Gaussian(torch.tensor([0.3])),
    "student": lambda: StudentT(3.3, 0.7, min_df=2.5),
    "probit": Probit,
    "logistic": Logistic,
    "poisson": PoissonExp,
    "softplus": PoissonSoftplus,
    "negative binomial": lambda: NegativeBinomial(1 / 3),
    "gamma": lambda: Gamma(1 / 3, unit=0.3, offset=0.7),
    "log-normal": lambda: LogNormal(1 / 3, unit=-0.3, offset=1.7),
    "weibull": lambda: Weibull(1 / 3, unit=0.3, offset=0.7),
    "beta": lambda: Beta(1 / 3, unit=0.3, offset=0.2),
    "tobit": lambda: Tobit(1 / 3, lower=0.3, unit=0.3, offset=0.2),
    "known noise": GaussianKnownNoise,
    "known noise and more": lambda: GaussianKnownNoise(extra=1 / 3),
    "ordered": lambda: OrderedProbit(thresholds=[1 / 3, 2 / 3, 5.0]),
    "softmax": lambda: Softmax(3),
    "robust max": lambda: RobustMax(3, 0.1),
    "heteroscedastic": HeteroscedasticGaussian,
    "binomial": Binomial,
    "conway-maxwell": lambda: ConwayMaxwellPoisson(1 / 3),
    "zero-inflated poisson": lambda: ZeroInflatedPoisson(1 / 3),
    "zero-inflated negative binomial": lambda: ZeroInflatedNegativeBinomial(1 / 3, 2 / 3),
}

RULES: list[Rule] = [
    ClosedForm(),
    Quadrature(),
    Quadrature(num_nodes=20, nodes="gauss_hermite"),
    BiasedMonteCarlo(num_samples=7, nu=1e-4, gradient="second_derivative"),
    BiasedMonteCarlo(num_samples=7.5, nu=0),
    ProductSampling(num_samples=3, sampler="paper", gradient="score", exact_value=True),
]

LOSSES: list[PointLoss] = [
    AbsoluteLoss(),
    CRPSLoss(),
    GibbsLoss(),
    LogLoss(),
    LogLoss("ups"),
    *(LogLoss(rule) for rule in RULES),
    PinballLoss(0.1 + 0.2),
    SquareLoss(),
    ZeroOneCost(2.0, 0.3),
]

STAGE = StageResult(
    stage="log_loss",
    status=Status.CONVERGED,
    reason="the loss stayed within 1e-4 — β",
    steps=2,
    evaluations=5,
    loss=0.1 + 0.2,
    losses=(math.inf, math.nan, 0.1 + 0.2),
    jitter=0.0,
    at_floor=("likelihood.raw_noise",),
    ends_training=False,
)

RECORD: dict[str, Any] = {
    "beta": 0.1 + 0.2,
    "path": [{"beta": 0.0, "nll": math.nan}, {"beta": -0.0, "nll": -math.inf}],
    "words": 'β \ud800 "\\\n',
    "big": 2**80,
    "none": None,
    "flags": [True, 1, 1.0, []],
}


def shaken(module: nn.Module, seed: int = 0) -> Any:
    """The module with parameters as no start gives them, every second one held."""
    generator = torch.Generator().manual_seed(seed)
    for index, parameter in enumerate(module.parameters()):
        noise = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(noise)
        parameter.requires_grad_(index % 2 == 0)
    return module


def inputs(n: int = 9, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)


def posterior_with(
    kernel: Any = None, mean: Any = None, dtype: torch.dtype = torch.float64
) -> SparsePosterior:
    """A posterior away from its start."""
    prior = Prior(k.RBFKernel() if kernel is None else kernel, mean, 1.7, dtype)
    shaken(prior)
    posterior = SparsePosterior(prior, inputs(4, dtype), nugget=1e-4)
    u_chol = torch.eye(4, dtype=dtype) + 0.1 * torch.ones(4, 4, dtype=dtype)
    posterior.set_q(inputs(4, dtype)[:, 0], u_chol)
    posterior.Z.requires_grad_(False)
    return posterior


def state(**changes: Any) -> ModelState:
    """A model with something in every field."""
    fields: dict[str, Any] = {
        "estimator": "SparseGPRegressor",
        "params": {
            "kernel": shaken(KERNELS["sum and product"]()),
            "likelihood": shaken(StudentT()),
            "rule": RULES[-1],
            "objective": LogLoss(RULES[3]),
            "inducing": inputs(4).numpy(),
            "num_inducing": np.int64(50),
            "beta": "auto",
            "betas": (0.0, 1, "auto", None),
            "more": [True, np.float64(0.5)],
            "random_state": None,
            "tolerance": math.inf,
        },
        "posterior": posterior_with(KERNELS["bounded"](), MEANS["constant"]()),
        "likelihood": Gaussian(0.1),
        "arrays": {"X.mean": np.array([1.0, -0.0, 5e-324]), "y.scale": np.array(2.5)},
        "feature_names": ["β", "", "x y"],
        "stages": (STAGE,),
        "record": RECORD,
    }
    return ModelState(**{**fields, **changes})


def trees(shift: float = 0.0, width: int = 1) -> Trees:
    """Two splits with three leaves, and a leaf alone, for each output."""
    return Trees(
        is_leaf=np.tile([False, True, False, True, True, True], width),
        feature=np.tile(np.array([0, 2], np.int32), width),
        threshold=np.tile([0.3, math.inf], width),
        missing_left=np.tile([True, False], width),
        value=np.tile([0.1 + 0.2, -1 / 3, 2.0, 5e-324], width) + shift,
        output=np.repeat(np.arange(width, dtype=np.int32), 2),
        baseline=np.full(width, -0.7),
        num_features=D,
    )


def stack() -> Stack:
    """A source of two folds, and one of three columns, with ranges that are bounded and not."""
    scales = Scale(), Scale("log", 1e-3), Scale("logit", 0.1, 1 - 0.1)
    one = FittedSource(trees(), scales[0]), FittedSource(trees(1 / 3), scales[1])
    three = FittedSource(trees(width=3), scales[2])
    sources = FoldedSource(("trees",), one), FoldedSource(("a", "b", "c β"), (three,))
    return Stack(sources, num_features=D)


def mixture(**changes: Any) -> ModelState:
    """A model with two further members and a stack."""
    members = (
        MemberState(posterior_with(KERNELS["matern32"](), MEANS["zero"]()), StudentT(3.3, 0.7)),
        MemberState(posterior_with(KERNELS["rq"](), MEANS["constant"]()), Gaussian(1 / 3)),
    )
    return state(**{"members": members, "stack": stack(), **changes})


def bits(value: Any) -> Any:
    """All of a module that a file has to keep: names, dtypes, shapes, bytes and what is held."""
    return {
        name: (
            tensor.dtype,
            tensor.shape,
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist(),
            tensor.requires_grad,
        )
        for name, tensor in value.state_dict(keep_vars=True).items()
    }


def is_module(value: object) -> bool:
    return isinstance(value, gpytorch.Module | nn.Module)
