"""Study 2: functional sufficiency. `__init__.pyi` lists what is public here beside the names at the top, and each is
imported when it is first used. Follow the data from `gates.py` to `study.py`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
