"""Save and load fitted models: tensors and a validated manifest."""

from directgp.persistence.models import MODEL, ModelState, likelihood_spec, load_model, save_model

__all__ = ["MODEL", "ModelState", "likelihood_spec", "load_model", "save_model"]
