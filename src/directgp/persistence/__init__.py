"""Save and load fitted models: tensors and a validated manifest."""

from directgp.persistence.models import ModelState, load_model, save_model

__all__ = ["ModelState", "load_model", "save_model"]
