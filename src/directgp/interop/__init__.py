"""directgp inside other libraries: GPyTorch and BoTorch."""
