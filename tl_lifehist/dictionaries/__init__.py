"""Dictionaries: anything with `encode`, an affine `decode` and `W_dec`. A bare SAELens SAE is one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
