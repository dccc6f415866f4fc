"""The head of a folder as a drafter, and the ways it can draft: kinds of trees, or a small model's own with pruned vision."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters import FeatureDrafter, load_head
from eventspec.drafters.feature import TREES
from eventspec.drafters.head_folder import TrainedHead
from eventspec.drafters.small_vlm import Pruned, SmallVlm, SmallVlmDrafter
from eventspec.drafters.static_tree import static_tree
from eventspec.models.embedded import Ids
from eventspec.nn import Llama
from eventspec.nn.draft import Growth

USUAL = "dynamic"
WAYS = (*TREES, "static")
SMALL_WAYS = (USUAL, "pruned")


def feature_drafter(method: str, folder: Path, target: Llama, ids: Ids, end: int, way: str = USUAL) -> Drafter:
    """The head of a folder as a drafter for `target`, whose prompts' text `ids` gives and whose answers `end` ends.

    `way` is one of `WAYS`; for a small vision-language model (MASSV) one of `SMALL_WAYS`: it grows a tree of its own, and
    `pruned` is video-SpecVLM's. Raises BadInput and BadCheckpoint, one line each.
    """
    trained = load_head(folder, target)
    head = trained.head
    ways = SMALL_WAYS if isinstance(head, SmallVlm) else WAYS
    if way not in ways:
        raise BadInput(f"way '{way}' of drafting is unknown for head {folder.name}: choose one of {', '.join(ways)}")
    if isinstance(head, SmallVlm):
        return SmallVlmDrafter(method, head, ids, end, Pruned(target) if way == "pruned" else None)
    return FeatureDrafter(method, head, head.config.language, target, end, growth_of(trained, way), trained.prefix)


def growth_of(trained: TrainedHead, way: str) -> Growth:
    """The kind of tree; a static one is made for how often each of the head's choices was right when it was trained."""
    if way != "static":
        return TREES[way]
    if not trained.rates:
        raise BadInput("the head does not say how often its choices are right (ranks), which a static tree is made for")
    return static_tree(trained.rates)
