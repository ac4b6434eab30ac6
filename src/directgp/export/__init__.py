"""Export fitted estimators: ONNX, `torch.export`, and a predictor that needs NumPy alone."""

from directgp.export.formats import to_numpy, to_onnx, to_torch

__all__ = ["to_numpy", "to_onnx", "to_torch"]
