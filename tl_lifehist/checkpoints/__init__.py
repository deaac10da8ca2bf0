"""Training checkpoints: from a name to hooked models, one per step.

    revisions   what the names of checkpoints say
    weights     the files of a checkpoint, and whether they are whole
    composer    the weights in a file that Composer wrote
    adapters    architectures that TransformerLens cannot wrap yet
    boot        a checkpoint on disk becomes a hooked model
    hub         branches, sub-folders and single files of a hub repository come to the disk
    shape       how large a model is, from its configuration alone
    folders     where the checkpoints of a local folder lie
    cache       how much there is to fetch, and making room again
    sources     where a series' models come from; on_disk a folder, on_hub a repository
    series      CheckpointSeries, the mapping step -> model that the rest of the package works on
    listing     the table of a series' steps, tokens and sizes
    integrity   fingerprints, and duplicates between steps
    snapshot    writing checkpoints while a model trains
    pocket      the small suite that ships with the package

`__init__.pyi` lists what is public here beside the names at the top. Importing the package, any part of it, makes
TransformerLens know the architectures of `adapters` by name.
"""

import lazy_loader

from tl_lifehist.checkpoints.adapters import register_when_imported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_when_imported()
