"""Study 1, the life history of features. `__init__.pyi` lists what is public here beside the names at the top, and each
is imported when it is first used. Read the files in the order of the data: profiles, matching, lineages, containment,
controls, joint_ablation, ablation_breakdown, forecast, direction, contexts, content, noise, study."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
