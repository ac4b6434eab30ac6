"""Exported kernels: every part of an expression, in every format, against the library."""

import dataclasses
import math
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from directgp.errors import UnsupportedError
from directgp.export import kernels
from directgp.export.family import TargetFamily
from directgp.export.formats import onnx_model, torch_program
from directgp.export.heads import numbers, probabilities
from directgp.export.latents import latents_of
from directgp.export.mixtures import MemberProgram, outputs_of
from directgp.export.program import Program, run
from directgp.kernels import PARTS as CLASSES
from directgp.kernels import parse
from directgp.likelihoods import (
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    Probit,
    StudentT,
)
from directgp.posteriors import Prior, SparsePosterior
from directgp.predictive import predictive_quantiles
from directgp.predictive.component import Component
from directgp.predictive.mixture import PredictiveMixture
from tests.unit.kernels.columns import COLUMNS, EXPRESSIONS, PARTS, inputs

# Program, kernel and likelihood have no shapes that the tests could check.
pytestmark = pytest.mark.usefixtures("without_shape_checks")

NEW = torch.cat([inputs(30, seed=1), inputs(9)])
"""Rows, some of them inducing inputs and some with an unseen level."""

FAR = torch.cat([NEW, 1e3 * NEW])
LEVELS = (0.05, 0.5, 0.95)
Arrays = dict[str, NDArray[Any]]


def posterior_of(
    text: str, dtype: torch.dtype = torch.float64, latents: int = 1, shared: bool = False
) -> SparsePosterior:
    """A posterior away from its start."""
    X = inputs(9).to(dtype)
    prior = Prior.from_data(X, kernel=parse(text), columns=COLUMNS, mean="constant")
    posterior = SparsePosterior(prior, X)
    if latents > 1:
        posterior = posterior.with_latents(latents, shared=shared)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in posterior.named_parameters():
        if name != "Z":
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.3 * noise.to(dtype)
    return posterior


def program_of(posterior: SparsePosterior) -> Program:
    """Mean and variance of each latent function as a program."""
    program = Program(facts={"num_features": len(COLUMNS)})
    for p, latent in enumerate(latents_of(program.X, posterior)):
        program.outputs[f"mean {p}"] = latent.mean.number
        program.outputs[f"variance {p}"] = latent.variance.number
    return program


def by_onnx(program: Program, X: NDArray[Any]) -> Arrays:
    model = onnx_model(program, "float64")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))


def by_torch(program: Program, X: NDArray[Any]) -> Arrays:
    found = torch_program(program).module()(torch.from_numpy(X))
    return {name: value.numpy() for name, value in found.items()}


def assert_like(found: Arrays, posterior: SparsePosterior, X: torch.Tensor) -> None:
    """Compare with the predictions of the library."""
    with torch.no_grad():
        q = posterior.double().marginals(X)
    means, variances = (part.reshape(-1, len(X)).numpy() for part in (q.mean, q.variance))
    for p, (mean, variance) in enumerate(zip(means, variances, strict=True)):
        np.testing.assert_allclose(found[f"mean {p}"][:, 0], mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found[f"variance {p}"][:, 0], variance, rtol=1e-9, atol=1e-9)


def test_every_part_is_written() -> None:
    assert kernels._WRITERS.keys() == {*CLASSES.values()}
    assert {text.partition("(")[0] for text in PARTS} == CLASSES.keys()


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_numpy_and_onnx_compute_the_marginals(text: str) -> None:
    posterior = posterior_of(text)
    program = program_of(posterior)
    for found in (run(program, NEW.numpy()), by_onnx(program, NEW.numpy())):
        assert_like(found, posterior, NEW)


@pytest.mark.filterwarnings("ignore:No complete tensor found", "ignore:The given buffer is not")
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_torch_computes_the_marginals(text: str) -> None:
    posterior = posterior_of(text)
    found = by_torch(program_of(posterior), NEW.numpy())
    assert_like(found, posterior, NEW)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_posterior_in_float32_is_computed_in_float64(text: str) -> None:
    posterior = posterior_of(text, torch.float32)
    assert_like(run(program_of(posterior), NEW.numpy()), posterior, NEW)


@pytest.mark.parametrize("shared", [False, True])
def test_every_latent_function_is_computed(shared: bool) -> None:
    posterior = posterior_of(EXPRESSIONS[2], latents=3, shared=shared)
    assert_like(run(program_of(posterior), NEW.numpy()), posterior, NEW)


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_means_and_variances_are_within_their_bounds(text: str) -> None:
    posterior = posterior_of(text)
    program = program_of(posterior)
    (latent,) = latents_of(program.X, posterior)
    if "Linear" in text:
        assert latent.bounds is None
        with pytest.raises(UnsupportedError, match=r"Linear .*likelihood='gaussian'"):
            _ = latent.largest_deviation
        return
    found = run(program, FAR.numpy())
    assert found["variance 0"].max() <= latent.largest_variance
    assert latent.lower <= found["mean 0"].min() and found["mean 0"].max() <= latent.upper
    # The bound is one of this kernel, and not far above the largest variance.
    assert latent.largest_variance < 100 * found["variance 0"].max()


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_nan_is_never_silent(text: str) -> None:
    posterior = posterior_of(text)
    kernel = posterior.prior.structure
    assert kernel is not None
    program = program_of(posterior)
    for position in {int(column) for part in kernel.parts for column in part.columns}:
        X = NEW[:2].clone()
        X[1, position] = math.nan
        for found in (run(program, X.numpy()), by_onnx(program, X.numpy())):
            for values in found.values():
                assert np.isnan(values[1]).all() and np.isfinite(values[0]).all()


# Likelihoods

LINEAR = "Linear('x') + RBF('z') * Group('city')"


def family_of(likelihood: Likelihood) -> TargetFamily:
    return TargetFamily(likelihood.double(), None, 2.0, -1.0, LEVELS)


def quantiles_of(likelihood: Likelihood, posterior: SparsePosterior) -> NDArray[Any]:
    with torch.no_grad():
        q = posterior.marginals(NEW)
        quantiles = list(predictive_quantiles(likelihood, q, LEVELS))
    return 2.0 * torch.stack(quantiles, 1).numpy() - 1.0


def test_gaussian_noise_needs_no_bounds() -> None:
    posterior, likelihood = posterior_of(LINEAR), Gaussian(0.3)
    program = Program(facts={"num_features": len(COLUMNS)})
    outputs = numbers(family_of(likelihood), latents_of(program.X, posterior))
    program.outputs = {name: value.number for name, value in outputs.items()}
    found = run(program, NEW.numpy())
    expected = quantiles_of(likelihood, posterior)
    np.testing.assert_allclose(found["quantiles"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["mean"][:, 0], expected[:, 1], rtol=1e-9)


def test_a_mixture_of_gaussians_needs_no_bounds() -> None:
    parts = [
        (0.6, posterior_of(LINEAR), Gaussian(0.3)),
        (0.4, posterior_of("RBF('x')"), Gaussian(1.5)),
    ]
    program = Program(facts={"num_features": len(COLUMNS)})
    members = [
        MemberProgram(weight, family_of(likelihood), latents_of(program.X, posterior))
        for weight, posterior, likelihood in parts
    ]
    program.outputs = {name: value.number for name, value in outputs_of(members).items()}
    found = run(program, NEW.numpy())
    with torch.no_grad():
        mixture = PredictiveMixture(
            tuple(
                Component(weight, likelihood, posterior.marginals(NEW))
                for weight, posterior, likelihood in parts
            )
        )
        quantiles = 2.0 * mixture.quantiles([*LEVELS]).numpy() - 1.0
    np.testing.assert_allclose(found["quantiles"], quantiles.T, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("likelihood", [StudentT(), Poisson(), Probit()], ids=repr)
def test_tables_need_bounds(likelihood: Likelihood) -> None:
    family = family_of(likelihood)
    write = probabilities if likelihood.task == "classification" else numbers
    latents = latents_of(Program().X, posterior_of(LINEAR))
    with pytest.raises(UnsupportedError, match=r"part Linear .*Fit with likelihood='gaussian'"):
        write(family, latents)
    # Without quantiles and with bounds, the same likelihood is written.
    bounded = latents_of(Program().X, posterior_of("Additive('x') + Group('city')"))
    assert write(dataclasses.replace(family, levels=()), bounded)


def test_changing_noise_needs_bounds() -> None:
    likelihood = HeteroscedasticGaussian()
    latents = latents_of(Program().X, posterior_of(LINEAR, latents=2))
    with pytest.raises(UnsupportedError, match="part Linear"):
        numbers(family_of(likelihood), latents)
