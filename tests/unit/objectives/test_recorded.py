"""Point losses as a CUDA graph records them: the same numbers, without reads by the host."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from directgp import Marginals
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    Softmax,
    StudentT,
)
from directgp.log_expectations import ProductSampling
from directgp.numerics.fixed_sizes import FixedSizes, fixed_size, fixed_sizes
from directgp.objectives import GibbsLoss, LogLoss, PointLoss, ZeroOneCost
from directgp.objectives.base import LossGradient
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, columns, marked, points

FLOAT64, FLOAT32 = torch.float64, torch.float32
CPU = torch.device("cpu")

READS = {
    *("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
    *("lift_fresh", "_assert_async", "masked_scatter", "allclose"),
}
VIEWS = {
    *("view", "expand", "select", "slice", "unsqueeze", "squeeze", "detach", "t", "transpose"),
    *("_unsafe_view", "alias", "split", "unbind", "_reshape_alias", "permute", "as_strided"),
    *("empty", "empty_like", "new_empty", "split_with_sizes"),
}


class HostReadError(AssertionError):
    """An operation that a CUDA graph cannot record."""


class Recorder(TorchDispatchMode):
    """Raises where a value or a shape comes from the device; counts the other operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __enter__(self) -> Any:
        # These are not dispatched on a CPU.
        for name in ("tolist", "numpy"):
            setattr(Tensor, name, partial(_refuse, name))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for name in ("tolist", "numpy"):
            delattr(Tensor, name)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [index for index in args[1] or () if index is not None] if "index" in name else []
        if name in READS or any(mask.dtype == torch.bool for mask in masks if _is_tensor(mask)):
            raise HostReadError(name)
        self.number += name not in VIEWS
        return func(*args, **(kwargs or {}))


def _refuse(name: str, *args: Any) -> None:
    raise HostReadError(name)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


@contextmanager
def learning(sizes: FixedSizes) -> Iterator[None]:
    token = fixed_sizes.set(sizes)
    try:
        yield
    finally:
        fixed_sizes.reset(token)


def recorded(
    loss: PointLoss, likelihood: Likelihood, y: Tensor, q: Marginals, weights: Tensor | float = 1.0
) -> tuple[LossGradient, FixedSizes, int]:
    """The gradient as a graph computes it, the sizes, and the number of operations."""
    sizes = FixedSizes()
    with learning(sizes):
        loss.gradient(likelihood, y, q, weights)
        sizes.record(CPU)
        # The constants of the graph are made here.
        loss.gradient(likelihood, y, q, weights)
        with Recorder() as recorder:
            found = loss.gradient(likelihood, y, q, weights)
    return found, sizes, recorder.number


def assert_alike(got: LossGradient, want: LossGradient, rtol: float) -> None:
    """Parameters have slopes of either sign, whose sum may cancel."""
    for mine, other in zip(got[:3], want[:3], strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=1e-290)
    for mine, other in zip(got.parameters, want.parameters, strict=True):
        torch.testing.assert_close(mine, other, rtol=100 * rtol, atol=1e-12)


LOSSES: dict[str, PointLoss] = {
    "elbo": GibbsLoss(),
    "log_loss": LogLoss(),
    "zero_one_cost": ZeroOneCost(false_positive=0.1, false_negative=7.0),
}
LABELS = {"probit", "logistic"}
PAIRS = [
    (row, name)
    for row in LIKELIHOODS
    for name, loss in LOSSES.items()
    if loss.fixed_work(row.make()) and (name != "zero_one_cost" or row.name in LABELS)
]


def ids(value: Any) -> str:
    return getattr(value, "name", None) or str(value).removeprefix("torch.")


def test_every_pair_has_fixed_work() -> None:
    """All but two peaks, sorted rows (extra zeros, intervals) and a table that is looked up."""
    never = {"beta", "com_poisson", "weibull", "weibull_censored"}
    never |= {"zero_inflated_poisson", "zero_inflated_negative_binomial"}
    fixed = {(row.name, name) for row, name in PAIRS}
    missing = {(row.name, name) for row in LIKELIHOODS for name in ("elbo", "log_loss")} - fixed
    expected = {(row, name) for row in never for name in ("elbo", "log_loss")}
    assert missing == expected | {("tobit", "elbo"), ("ordinal", "elbo")}
    assert {(name, "zero_one_cost") for name in LABELS} <= fixed


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32], ids=ids)
@pytest.mark.parametrize(("row", "loss"), marked(PAIRS), ids=ids)
def test_the_same_numbers_in_every_regime(
    row: LikelihoodRow, loss: str, dtype: torch.dtype
) -> None:
    y, mean, variance = columns(points(row), dtype)
    likelihood, q = row.make(), Marginals(mean, variance)
    found, sizes, _ = recorded(LOSSES[loss], likelihood, y, q)
    assert sizes.outgrown() == {}
    expected = LOSSES[loss].gradient(likelihood, y, q, 1.0)
    assert_alike(found, expected, 2e-9 if dtype == FLOAT64 else 1e-5)


N, BATCH = 7, 3
EXPOSURE = torch.linspace(0.5, 2.0, N, dtype=FLOAT64)


def made(row: LikelihoodRow, batch: bool) -> Likelihood:
    """Batches have parameters for each model; counts have exposures."""
    factor = torch.linspace(0.7, 1.3, BATCH, dtype=FLOAT64)[:, None] if batch else None
    likelihood = row.make(factor)
    if isinstance(likelihood, NegativeBinomial) or "poisson" in row.name:
        return likelihood.with_exposure(EXPOSURE)  # type: ignore[no-any-return, operator]
    return likelihood


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize(("row", "loss"), marked(PAIRS), ids=ids)
def test_with_weights_exposures_and_batches(row: LikelihoodRow, loss: str, batch: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, N) if batch else (N,)
    mean, spread = torch.randn(2, *shape, generator=generator, dtype=FLOAT64)
    y = torch.tensor(row.targets, dtype=FLOAT64).clamp(-3, 20).repeat(N)[:N]
    mean[..., 0], spread[..., 0] = -7, -2
    q, weights = Marginals(mean, torch.exp(0.5 * spread)), torch.linspace(0.1, 1, N, dtype=FLOAT64)
    likelihood = made(row, batch)
    found, sizes, number = recorded(LOSSES[loss], likelihood, y, q, weights)
    assert number < 400, "each operation is a kernel"
    assert sizes.outgrown() == {}
    expected = LOSSES[loss].gradient(likelihood, y, q, weights)
    assert_alike(found, expected, 2e-9)


@pytest.mark.parametrize("regime", ["start", "mixed"])
@pytest.mark.parametrize("name", ["elbo", "log_loss"])
@pytest.mark.slow_for("mixed")
def test_classes(name: str, regime: str) -> None:
    """Narrow latents and classes far behind have integrals of their own."""
    generator = torch.Generator().manual_seed(1)
    mean, spread = torch.randn(2, 4, 60, generator=generator, dtype=FLOAT64)
    y = torch.arange(60, dtype=FLOAT64) % 4
    if regime == "mixed":
        mean[:, 30:] *= 20
        mean[1:3, :9] -= 300
        spread *= 3
    q, softmax, loss = Marginals(mean, torch.exp(spread)), Softmax(4), LOSSES[name]
    assert loss.fixed_work(softmax)
    found, sizes, number = recorded(loss, softmax, y, q)
    assert number < (350 if regime == "start" else 650)
    assert sizes.outgrown() == {}
    expected = loss.gradient(softmax, y, q, 1.0)
    for mine, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_classes_that_need_more_are_noticed() -> None:
    softmax, y = Softmax(3), torch.tensor([0.0, 1.0, 2.0], dtype=FLOAT64)
    mean = torch.linspace(-1, 1, 9, dtype=FLOAT64).view(3, 3)
    for loss in (LogLoss(), GibbsLoss()):
        sizes = FixedSizes()
        with learning(sizes):
            loss.gradient(softmax, y, Marginals(mean, mean**2 + 1), 1.0)
            sizes.record(CPU)
        for change in (0.01, 400.0):
            q = Marginals(mean, torch.full_like(mean, change))
            grown: dict[str, float] = sizes.sizes | {"more": 0.0}
            rounds = 0
            while grown:
                again, rounds = FixedSizes(dict(sizes.sizes) if not rounds else grown), rounds + 1
                with learning(again):
                    again.record(CPU)
                    found = loss.gradient(softmax, y, q, 1.0)
                    grown = again.outgrown()
                assert rounds > 1 or grown
            assert rounds <= 6
            expected = loss.gradient(softmax, y, q, 1.0)
            for mine, other in zip(found[:3], expected[:3], strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


DRAWN = [
    (likelihood, form)
    for likelihood in (Probit(), Gaussian(0.3))
    for form in ("score", "mixed", "pathwise")
]


@pytest.mark.parametrize(("likelihood", "form"), DRAWN, ids=str)
def test_product_sampling_without_rejection(likelihood: Likelihood, form: Any) -> None:
    """Draws by formulas: the same operations and, from the same seed, the same numbers."""
    loss = LogLoss(ProductSampling(3, gradient=form))
    assert loss.fixed_work(likelihood)
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(50, generator=generator, dtype=FLOAT64)
    # A wide q has the nodes that a graph always has.
    q = Marginals(mean, torch.full_like(mean, 9.0))
    y = (mean > 0.3).double()
    sizes = FixedSizes()

    def draw() -> LossGradient:
        return loss.gradient(likelihood, y, q, 1.0, generator=generator.manual_seed(5))

    expected = draw()
    with learning(sizes):
        draw()
        sizes.record(CPU)
        draw()
        generator.manual_seed(5)
        with Recorder():
            found = loss.gradient(likelihood, y, q, 1.0, generator=generator)
    if form != "mixed":
        return assert_alike(found, expected, 2e-9)
    # A graph finds the centre of the control variates on a grid, to a share of the peak's width:
    # the gradient is unbiased for any centre.
    torch.testing.assert_close(found.losses, expected.losses)
    for mine, other in ((found.mean, expected.mean), (found.variance, expected.variance)):
        torch.testing.assert_close(mine, other, rtol=0.0, atol=2e-3 * float(other.abs().max()))


def test_product_sampling_with_rejection_is_not_recorded() -> None:
    assert not LogLoss(ProductSampling()).fixed_work(Logistic())
    for rule in (ProductSampling(sampler="paper"), ProductSampling(lambda step: step + 1)):
        assert not LogLoss(rule).fixed_work(Probit())


WIDER: list[tuple[Likelihood, PointLoss]] = [
    (StudentT(), LogLoss()),
    (Logistic(), LogLoss()),
    (Poisson(), LogLoss()),
    (Poisson("softplus"), LogLoss()),
    (NegativeBinomial(), LogLoss()),
    (StudentT(), GibbsLoss()),
    (NegativeBinomial(), GibbsLoss()),
    (Probit(), GibbsLoss()),
    (Logistic(), GibbsLoss()),
    (Poisson("softplus"), GibbsLoss()),
]


@pytest.mark.parametrize(("likelihood", "loss"), WIDER, ids=lambda each: type(each).__name__)
def test_examples_that_need_more_are_noticed(likelihood: Likelihood, loss: PointLoss) -> None:
    y, mean = torch.ones(5, dtype=FLOAT64), torch.linspace(-1, 1.3, 5, dtype=FLOAT64)
    narrow, wide = (torch.full_like(mean, variance) for variance in (0.1, 1e4))
    sizes = FixedSizes()
    with learning(sizes):
        loss.gradient(likelihood, y, Marginals(mean, narrow), 1.0)
        sizes.record(CPU)
        loss.gradient(likelihood, y, Marginals(mean, 1.1 * narrow), 1.0)
        assert sizes.outgrown() == {}
        loss.gradient(likelihood, y, Marginals(mean, wide), 1.0)
        loss.gradient(likelihood, y, Marginals(mean, narrow), 1.0)
        grown = sizes.outgrown()
    assert grown and all(grown[name] >= size for name, size in sizes.sizes.items())
    rounds = 0
    while grown:
        again, rounds = FixedSizes(grown), rounds + 1
        with learning(again):
            loss.gradient(likelihood, y, Marginals(mean, narrow), 1.0)
            again.record(CPU)
            found = loss.gradient(likelihood, y, Marginals(mean, wide), 1.0)
            grown = again.outgrown()
    assert rounds <= 3
    assert_alike(found, loss.gradient(likelihood, y, Marginals(mean, wide), 1.0), 2e-9)


def test_degrees_of_freedom_beyond_the_recorded_range_are_noticed() -> None:
    one = torch.ones(1, dtype=FLOAT64)
    for df in (1.0, 16.0):
        sizes, likelihood = FixedSizes(), StudentT(df=4.0)
        with learning(sizes):
            LogLoss().gradient(likelihood, one, Marginals(one, one), 1.0)
            sizes.record(CPU)
            with torch.no_grad():
                likelihood.raw_df.copy_(StudentT(df=df).raw_df)
            LogLoss().gradient(likelihood, one, Marginals(one, one), 1.0)
        assert sizes.outgrown(), df


def test_sizes_grow_with_a_margin_and_ignore_what_is_not_finite() -> None:
    sizes = FixedSizes({"nodes": 500.0})
    with learning(sizes):
        assert fixed_size("nodes", torch.tensor([10.0, 20.0])) is None
        assert fixed_size("others", torch.tensor(4.0)) is None
        assert sizes.sizes == {"nodes": 500.0, "others": 6.0}
        sizes.record(CPU)
        for needed in (math.nan, 5.0, math.inf):
            assert fixed_size("nodes", torch.tensor([needed])) == 500.0
            assert sizes.outgrown() == {}
        fixed_size("others", torch.tensor([7.0, math.nan]).nan_to_num(8.0))
        assert sizes.outgrown() == {"nodes": 500.0, "others": 12.0}


HOST_READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x * x.sum().item(),
    "if": lambda x: x if x.sum() > 0 else -x,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: torch.nonzero(x),
    "mask": lambda x: x[x > 0],
    "assigned mask": lambda x: x.clone().index_put_((x > 0,), torch.zeros(())),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "constant": lambda x: x * torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("kind", HOST_READS)
def test_control_reads_by_the_host_are_found(kind: str) -> None:
    with pytest.raises(HostReadError), Recorder():
        HOST_READS[kind](torch.ones(2))


@pytest.mark.parametrize("loss", [LogLoss(), GibbsLoss()], ids=["log_loss", "elbo"])
def test_control_steps_that_are_not_recorded_read(loss: PointLoss) -> None:
    one = torch.ones(3, dtype=FLOAT64)
    with pytest.raises(HostReadError), Recorder():
        loss.gradient(StudentT(), one, Marginals(one, one), 1.0)
