"""What is public in `tl_lifehist.dictionaries`, beside the names at the top."""

# isort: skip_file

from .protocol import (
    Dictionary as Dictionary,
    ReferencedDictionary as ReferencedDictionary,
    decoder_directions as decoder_directions,
)
from .sae import (
    SAEs as SAEs,
    load_saes as load_saes,
)
from .decomposition import (
    Decomposition as Decomposition,
    dictionary_overlap as dictionary_overlap,
    load_decomposition as load_decomposition,
)
