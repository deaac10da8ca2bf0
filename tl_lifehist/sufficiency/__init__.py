"""Study 2: functional sufficiency. Follow the data from `reconstruction.py` to `study.py`."""
