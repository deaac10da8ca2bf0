"""The checker of annotated types while the tests run: as type checkers read them, an int is also a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
