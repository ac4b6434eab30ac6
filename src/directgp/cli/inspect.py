"""`directgp inspect`: what may be typed."""

from directgp.cli.options import Debug, Json, ModelArgument
from directgp.cli.terminal import Terminal


def inspect(model: ModelArgument, json: Json = False, debug: Debug = False) -> None:
    """Show what a model was trained on and how."""
    from directgp.cli.inspect_run import show_model

    show_model(model, Terminal(json=json))
