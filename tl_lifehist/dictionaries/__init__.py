"""Dictionaries: anything with `encode`, an affine `decode` and `W_dec`. A bare SAELens SAE is one."""
