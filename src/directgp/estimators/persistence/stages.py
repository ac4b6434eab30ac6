"""How training went, as a spec."""

from dataclasses import asdict

from directgp.estimators.persistence.schema import StageSpec
from directgp.training.result import StageResult


def stage_spec(stage: StageResult) -> StageSpec:
    """What rebuilds the result of a stage."""
    lists = {"losses": list(stage.losses), "at_floor": list(stage.at_floor)}
    return StageSpec(**{**asdict(stage), **lists})


def load_stage(spec: StageSpec) -> StageResult:
    """The result of a stage."""
    tuples = {"losses": tuple(spec.losses), "at_floor": tuple(spec.at_floor)}
    return StageResult(**{**dict(spec), **tuples})
