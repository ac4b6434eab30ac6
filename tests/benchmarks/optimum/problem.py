import numpy as np

from benchmarks.optimum.jobs import Given, Goal, Kind, Parameters
from benchmarks.optimum.recorder import start


def small(kind: Kind, objective: Goal, beta: float = 0.5) -> Given:
    """Twelve rows of each kind of target, and three inducing inputs."""
    random = np.random.default_rng(0)
    X = random.normal(size=(12, 2))
    targets = {
        "regression": np.sin(X[:, 0]),
        "classification": (X[:, 0] > 0).astype(float),
        "counts": random.poisson(2.0, size=12).astype(float),
    }
    return Given(
        kind=kind,
        objective=objective,
        beta=beta,
        X=X,
        y=targets[kind],
        Z=X[:3].copy(),
        lengthscale=1.3,
        output_scale=0.7,
        mean=0.2 if kind == "classification" else None,
        noise=0.3 if kind == "regression" else 0.0,
    )


def moved(given: Given) -> Parameters:
    """Parameters away from the start, with a jitter."""
    u_chol = np.array([[0.6, 0.0, 0.0], [0.1, 0.8, 0.0], [-0.2, 0.1, 0.5]])
    q = {"u_mean": np.array([0.4, -0.3, 0.2]), "u_chol": u_chol}
    return start(given) | q | {"jitter": np.array(1e-3)}
