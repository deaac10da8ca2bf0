"""tl_lifehist: the life history of features through a language model's training checkpoints.

    import tl_lifehist as lh

`__init__.pyi` lists the public names. Each is imported when it is first used, so that importing the package costs
nothing; `lh.checkpoints`, `lh.dictionaries`, `lh.lifehistory` and `lh.sufficiency` hold more, in the same manner.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from tl_lifehist.deprecated import NEW_PLACES, former

__version__ = "0.1.0"

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return former(name) if name in NEW_PLACES else _public(name)
