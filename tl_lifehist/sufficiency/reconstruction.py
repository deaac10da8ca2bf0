# moved: import MaskBasis from tl_lifehist.dictionaries.basis (this file goes away)
from tl_lifehist.dictionaries.basis import MaskBasis as MaskBasis
