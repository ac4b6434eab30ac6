"""Save and load fitted models: tensors and a validated manifest."""

from directgp.persistence.models import MODEL, ModelState, load_model, save_model

__all__ = ["MODEL", "ModelState", "load_model", "save_model"]
