"""The targets that there are, by name. A new one is a class and a line:

    TARGETS.register("mine", TargetKind(make_mine, "mine", "#9a9c95"))

where `make_mine(context)` returns one. Imports nothing heavy, so that a command knows the names at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tl_lifehist.palette import FOURTH, MEASURED, SECOND, THIRD
from tl_lifehist.registry import Registry

if TYPE_CHECKING:
    from tl_lifehist.sufficiency.targets import Target, TargetContext


def _never(transfer_loss: str) -> bool:
    return False


@dataclass(frozen=True)
class TargetKind:
    """A target by its name in `TARGETS`, which is also the order of tables and figures.

    Attributes:
        make: the target at a checkpoint and hook point; a function at a module's top level, so that workers find it.
        label: for readers.
        colour: in every figure.
        injects: whether each step of a mask runs a model, given the study's `transfer_loss`: for what a study takes.
    """

    make: Callable[[TargetContext], Target]
    label: str
    colour: str
    injects: Callable[[str], bool] = _never


def _reconstruction(context: TargetContext) -> Target:
    from tl_lifehist.sufficiency.targets import Reconstruction

    return Reconstruction()


def _fixed_head(context: TargetContext) -> Target:
    from tl_lifehist.sufficiency.targets import FixedHead

    return FixedHead(context.translator, context.relative_to)


def _downstream(context: TargetContext) -> Target:
    from tl_lifehist.sufficiency.targets import Downstream

    return Downstream(context.relative_to)


def _transfer(context: TargetContext) -> Target:
    from tl_lifehist.sufficiency.targets import Transfer

    return Transfer(context.final_model, context.alignment, context.transfer_loss, context.relative_to)


TARGETS: Registry[TargetKind] = Registry(
    "target",
    {
        "reconstruction": TargetKind(_reconstruction, "reconstruction", SECOND),
        "fixed_head": TargetKind(_fixed_head, "fixed head", THIRD),
        "downstream": TargetKind(_downstream, "downstream", MEASURED, lambda loss: True),
        "transfer": TargetKind(_transfer, "transfer", FOURTH, lambda loss: loss == "kl"),
    },
)
