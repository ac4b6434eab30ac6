"""How methods and tasks are called in a sentence."""

from directgp.datasets.problem import Task
from directgp.experiments.methods import Method

TASKS: dict[Task, str] = {
    "regression": "regression",
    "classification": "classification",
    "count": "counts",
}


def called(method: Method) -> str:
    """``the ELBO``, ``log-loss DLM (joint)``."""
    name, comma, mode = method.label.partition(", ")
    article = "the " if name.endswith("ELBO") else ""
    return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def capitalised(sentence: str) -> str:
    """With a capital where a Latin letter begins it."""
    return sentence[:1].upper() + sentence[1:]


def asked(task: Task, target: str) -> str:
    """What is predicted, in words."""
    kind = {
        "regression": "a number",
        "classification": "one of two classes",
        "count": "a count",
    }[task]
    return f"Predicting {target}, {kind}"
