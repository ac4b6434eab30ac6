"""``python -m directgp_paper.diagnostics``: bounds of the paper's table 1; study of convergence."""

import argparse
import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from directgp.likelihoods import Logistic
from directgp.log_expectations import BiasedMonteCarlo, at_step
from directgp.plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Mark
from directgp.posteriors import Prior, SparsePosterior
from directgp.text import duration, number, text_table
from directgp_paper.diagnostics.bounds import MISPRINTS, bounds_table, format_checks
from directgp_paper.diagnostics.descent import (
    ConvergenceConstants,
    DescentPath,
    DescentProblem,
    Moments,
    Region,
    convergence_constants,
    convergence_rule,
    descend,
    stationary_point,
)
from directgp_paper.diagnostics.gradients import expected_bmc
from directgp_paper.diagnostics.schedules import HarmonicSteps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from directgp.plots import Picture

STEP_SIZE = HarmonicSteps(40.0)
"""γ_t is ½ for 79 steps. The smallest curvature λ of h at its minimum is 0.125; without noise the
distance falls as t^−40λ."""

REGION = Region(radius=1.0, lower=0.4, upper=2.5)
"""The region of the descent: contains the minimum of h and all limits with a fixed L."""

EXACT = "exact gradient"
BMC = "bMC by the corollary"
SMOOTH = "smooth-bMC by the corollary"

GROWING = "bMC, L = 4/γ"
"""Our own: enough for the bias of bMC to be of the order of γ_t; see docs/convergence.md."""

FIXED = {
    "bMC, L = 1": BiasedMonteCarlo(1),
    "bMC, L = 2": BiasedMonteCarlo(2),
    "bMC, L = 10": BiasedMonteCarlo(10),
    "bMC by φ″, L = 1": BiasedMonteCarlo(1, gradient="second_derivative"),
    "bMC by φ″, L = 10": BiasedMonteCarlo(10, gradient="second_derivative"),
}


def growing_samples(step: int) -> int:
    """Return L_t = ⌈4/γ_t⌉."""
    return math.ceil(4 / STEP_SIZE(step))


def study_problem() -> DescentProblem:
    """Return logistic labels of 24 inputs, 4 inducing inputs and β = n/4."""
    X = torch.linspace(-2, 2, 24, dtype=torch.float64)[:, None]
    Z = torch.linspace(-1.6, 1.6, 4, dtype=torch.float64)[:, None]
    generator = torch.Generator().manual_seed(0)
    y = torch.bernoulli(torch.sigmoid(3 * torch.sin(2 * X[:, 0])), generator=generator)
    prior = Prior.from_data(X).rescaled(2.0)
    prior.kernel.lengthscale = 0.8
    return DescentProblem.of(SparsePosterior(prior, Z), Logistic(), X, y, beta=len(y) / 4)


class StudyRun(NamedTuple):
    """A run of `descend`, and the point that it should converge to."""

    rule: BiasedMonteCarlo | None
    """Rule of the gradients; None if they are exact."""

    path: DescentPath
    """Points and gradients of the run."""

    limit: Moments
    """The zero of the rule's expected gradient: for exact gradients, the minimum of h."""

    level: float
    """‖∇h‖ at the limit."""

    seconds: float

    @property
    def distance(self) -> float:
        """‖r_t − limit‖ at the end."""
        return self.path.points[-1].plus(-1.0, self.limit).norm


class ConvergenceStudy(NamedTuple):
    """Runs on one problem whose minimum is known."""

    problem: DescentProblem
    constants: ConvergenceConstants
    runs: dict[str, StudyRun]


def convergence_study(
    steps: int = 800, fixed_steps: int = 10_000, seed: int = 0, cap: int | None = None
) -> ConvergenceStudy:
    """Run exact gradients, bMC and smooth-bMC by the theory, and bMC with a fixed L."""
    problem = study_problem()
    constants = convergence_constants(problem, REGION)
    minimum = stationary_point(problem, REGION)
    theory = partial(convergence_rule, constants, step_size=STEP_SIZE, cap=cap)
    grows = BiasedMonteCarlo(growing_samples, gradient="second_derivative")
    short = {EXACT: None, BMC: theory(), SMOOTH: theory(smooth=True)}
    runs = {}
    for name, rule in {**short, GROWING: grows, **FIXED}.items():
        began = time.perf_counter()
        path = descend(
            problem,
            REGION,
            steps if name in short else fixed_steps,
            rule=rule,
            step_size=STEP_SIZE,
            generator=torch.Generator().manual_seed(seed),
        )
        seconds = time.perf_counter() - began
        limit = fixed_limit(problem, FIXED[name]) if name in FIXED else minimum
        runs[name] = StudyRun(rule, path, limit, problem.exact(limit)[1].norm, seconds)
        print(f"{name}: {duration(seconds)}", file=sys.stderr)
    return ConvergenceStudy(problem, constants, runs)


def fixed_limit(problem: DescentProblem, rule: BiasedMonteCarlo) -> Moments:
    """Return the zero of the expected gradient of bMC with a fixed number of samples."""
    settings: Any = {"num_samples": rule.num_samples, "gradient": rule.gradient}
    slopes = partial(expected_bmc, problem.likelihood, problem.y, **settings)
    return stationary_point(problem, REGION, slopes)


def constants_table(constants: ConvergenceConstants) -> str:
    """Format the constants of the corollaries."""
    rows = [
        ("B = sup φ", constants.density),
        ("B′ = sup |φ′|", constants.slope),
        ("B″ = sup |φ″|", constants.curvature),
        ("ζ = min E φ over the region", constants.zeta),
        ("A", constants.size),
        ("c₁, c₂", constants.c1),
        ("c₃ of bMC", constants.c3),
        ("q of smooth-bMC", constants.q),
        ("Lipschitz constant of ∇h", constants.lipschitz),
    ]
    return text_table([("constant", "value"), *((name, number(x)) for name, x in rows)], right=[1])


def runs_table(study: ConvergenceStudy) -> str:
    """Format the end of each run: ‖∇h‖, its computed limit, the distance to the limit point."""
    head = ("run", "steps", "samples", "‖∇h‖", "its limit", "distance", "projected", "capped")
    rows: list[tuple[str, ...]] = [(*head, "time")]
    for name, run in study.runs.items():
        path = run.path
        counts = f"{path.steps[-1]:,}", f"{path.num_samples[-1]:,}"
        level = f"{run.level:.1e}" if name in FIXED else "0"
        numbers = f"{path.gradient_norm[-1]:.1e}", level, f"{run.distance:.1e}"
        steps = (str(len(events)) for events in (path.projected, path.capped))
        rows.append((name, *counts, *numbers, *steps, duration(run.seconds)))
    return text_table(rows, right=range(1, len(rows[0])))


_MARKS = {
    EXACT: (INK, "D", "-"),
    BMC: (BLUE, "s", "-"),
    SMOOTH: (GREEN, "o", "-"),
    GROWING: (BLUE, "o", "--"),
    "bMC, L = 1": (ORANGE, "v", "-"),
    "bMC, L = 2": (PURPLE, "^", "-"),
    "bMC, L = 10": (GREY, "P", "-"),
}
"""Colour, marker and line of the runs in the figure."""


def study_picture(study: ConvergenceStudy) -> "Picture":
    """Return ‖∇h‖ against the step, with computed limits, and the samples of each step."""
    from directgp.plots import Layout, Line, Panel, Picture, draw_lines

    marks = {
        name: Mark(color, marker, line, filled=line == "-")
        for name, (color, marker, line) in _MARKS.items()
        if name in study.runs
    }

    def draw_norms(ax: "Axes") -> None:
        lines = []
        for name, mark in marks.items():
            path = study.runs[name].path
            level = study.runs[name].level
            pairs = list(zip(map(float, path.steps), path.gradient_norm, strict=True))[1:]
            lines.append(Line.of(name, mark, pairs))
            if name in FIXED:
                ax.axhline(level, color=mark.color, linestyle=":", linewidth=1.2, zorder=2)
        draw_lines(ax, lines)
        dotted: Any = {"color": INK, "linestyle": ":", "linewidth": 1.2}
        ax.plot([], [], label="computed limits for fixed L", **dotted)
        ax.set(xscale="log", yscale="log", xlabel="step t", ylabel="‖∇h‖")

    def draw_samples(ax: "Axes") -> None:
        lines = []
        for name, mark in marks.items():
            rule = study.runs[name].rule
            path = study.runs[name].path
            if rule is not None:
                pairs = [
                    (float(t), float(at_step(rule.num_samples, t - 1))) for t in path.steps[1:]
                ]
                lines.append(Line.of(name, mark, pairs))
        draw_lines(ax, lines)
        ax.set(xscale="log", yscale="log", xlabel="step t", ylabel="L")

    ends = (f"{name} {run.path.gradient_norm[-1]:.1e}" for name, run in study.runs.items())
    return Picture(
        "convergence",
        "Convergence",
        "Norm of the exact gradient along the descent. Dotted: the computed limits of fixed L.",
        f"Norm of the gradient at the end: {', '.join(ends)}.",
        [
            Panel("Norm of the exact gradient", draw_norms),
            Panel("Samples L of each example", draw_samples),
        ],
        Layout(height=3.4, min_width=4.0),
    )


def print_bounds() -> None:
    """Print the checks of every bound, and the misprints."""
    print("Bounds of φ = p(y|f), φ′ and φ″ over f: published, and found by search.\n")
    print(format_checks(bounds_table()))
    print("\nMisprints around the table:")
    for misprint in MISPRINTS:
        print(f"- {misprint}")


def print_convergence(study: ConvergenceStudy, figure: Path) -> None:
    """Print the constants and the end of each run, and write the figure."""
    from directgp.plots import render

    print("Constants of the convergence corollaries over the region.\n")
    print(constants_table(study.constants))
    print("\nEnd of each run; the limit of fixed L is computed by quadrature.\n")
    print(runs_table(study))
    figure.write_bytes(render(study_picture(study)).png)
    print(f"\nThe figure is in {figure}.")


def main() -> None:
    """Print the bounds, or run the study of convergence."""
    parser = argparse.ArgumentParser(
        prog="python -m directgp_paper.diagnostics", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bounds", help="check the bounds of table 1 of the paper")
    study = commands.add_parser(
        "convergence", help="run the descent of the convergence corollaries; takes four minutes"
    )
    study.add_argument("--steps", type=int, default=800, help="steps by the theory (800)")
    study.add_argument(
        "--fixed-steps", type=int, default=10_000, help="steps of the others (10000)"
    )
    study.add_argument("--seed", type=int, default=0)
    study.add_argument("--cap", type=int, help="largest number of samples in a step (no limit)")
    study.add_argument("--figure", type=Path, default=Path("convergence.png"), help="file to write")
    options = parser.parse_args()
    if options.command == "bounds":
        return print_bounds()
    results = convergence_study(options.steps, options.fixed_steps, options.seed, options.cap)
    return print_convergence(results, options.figure)


if __name__ == "__main__":
    main()
