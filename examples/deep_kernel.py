"""A neural network in front of the kernel, in a GPyTorch training loop: digits, odd or even.

The model is an `ApproximateGP` on two features that a network computes from an image. The same loop
trains it twice: with GPyTorch's `VariationalELBO` and with `DirectLogLoss`. The figure shows the
two features of test images and the predicted probabilities.
"""

import argparse
from pathlib import Path
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from directgp.interop.gpytorch import DirectLogLoss, GPyTorchLikelihood
from directgp.likelihoods import Probit

PICTURE = Path(__file__).resolve().parents[1] / "build/examples/deep_kernel.png"
BATCH = 100


class Model(gpytorch.models.ApproximateGP):
    """RBF kernel on the features of a network; inducing inputs are features too."""

    def __init__(self, num_inducing: int) -> None:
        q = CholeskyVariationalDistribution(num_inducing)
        super().__init__(VariationalStrategy(self, torch.randn(num_inducing, 2), q))
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.network = nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2), nn.BatchNorm1d(2, affine=False)
        )

    def forward(self, features: Tensor) -> MultivariateNormal:
        """Return the prior of f at features."""
        return MultivariateNormal(self.mean(features), self.kernel(features))

    def __call__(self, x: Tensor, prior: bool = False) -> MultivariateNormal:
        """Return q(f) at images."""
        return super().__call__(self.network(x), prior=prior)


def trained(objective: Any, x: Tensor, y: Tensor, epochs: int) -> Model:
    """Train a model with Adam; only the line of the objective differs."""
    torch.manual_seed(0)
    model, likelihood = Model(num_inducing=20), GPyTorchLikelihood(Probit())
    mll = objective(likelihood, model, num_data=len(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            loss = -mll(model(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
    model.eval()
    return model


def compare(models: dict[str, Model], x: Tensor, y: Tensor) -> Table:
    """Return a table with one row per objective."""
    table = Table(title=f"digits, odd or even: {len(y)} images, unseen", box=SIMPLE_HEAD)
    for head in ("objective", "NLL", "wrong"):
        table.add_column(head, no_wrap=True)
    for name, model in models.items():
        odd = GPyTorchLikelihood(Probit())(model(x))
        wrong = ((odd.mean > 0.5) != (y > 0.5)).double().mean()
        table.add_row(name, f"{-odd.log_prob(y).mean():.3f}", f"{wrong:.1%}")
    return table


def draw(models: dict[str, Model], x: Tensor, y: Tensor) -> Figure:
    """Draw test images by their two features, and the probability of odd."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    for axes, (name, model) in zip(figure.subplots(1, 2), models.items(), strict=True):
        features = model.network(x)
        ends = torch.linspace(-3, 3, 80)
        grid = torch.cartesian_prod(ends, ends)
        odd = GPyTorchLikelihood(Probit())(model.variational_strategy(grid)).mean.reshape(80, 80)
        shades = axes.contourf(
            ends, ends, odd.T, levels=torch.linspace(0, 1, 11), cmap="PuOr_r", alpha=0.6
        )
        for label, marker, colour in ((0, "o", "#5E3C99"), (1, "^", "#B35806")):
            axes.plot(*features[y == label].T, marker, ms=5, color=colour, mec="white", mew=0.5)
        axes.set(title=name, xlabel="first feature", ylabel="second feature")
        axes.set(xlim=(-3, 3), ylim=(-3, 3))
    figure.colorbar(shades, ax=figure.axes, label="P(odd); circles are even, triangles odd")
    return figure


def main() -> None:
    """Train, print the table and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short settings, rough figures")
    epochs = 3 if parser.parse_args().quick else 60
    pixels, digits = (torch.as_tensor(each).float() for each in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    (x, unseen), (y, labels) = (pixels[order] / 16).split(1000), (digits[order] % 2).split(1000)
    objectives = {
        "VariationalELBO": gpytorch.mlls.VariationalELBO,
        "DirectLogLoss": DirectLogLoss,
    }
    models = {name: trained(each, x, y, epochs) for name, each in objectives.items()}
    with torch.no_grad():
        Console().print(compare(models, unseen, labels))
        figure = draw(models, unseen, labels)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=100)
    print(f"The picture is {PICTURE}.")


if __name__ == "__main__":
    main()
