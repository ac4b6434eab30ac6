"""Save and load fitted models: tensors and a validated manifest."""

from directgp.persistence.models import (
    MODEL,
    MemberState,
    ModelState,
    likelihood_spec,
    load_model,
    save_model,
)
from directgp.persistence.stacks import refuse_estimators

__all__ = [
    "MODEL",
    "MemberState",
    "ModelState",
    "likelihood_spec",
    "load_model",
    "refuse_estimators",
    "save_model",
]
