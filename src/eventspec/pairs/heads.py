"""The head of a folder as a drafter, and its tree policies: kinds of trees, or a small model's own with pruned vision."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters import FeatureDrafter, load_head
from eventspec.drafters.feature import TREES
from eventspec.drafters.head_folder import TrainedHead
from eventspec.drafters.small_vlm import Pruned, SmallVlm, SmallVlmDrafter
from eventspec.drafters.static_tree import static_tree
from eventspec.models.prompt import TextIds
from eventspec.models.session import LanguageTarget
from eventspec.nn.draft import TreeConfig
from eventspec.pairs.specs import USUAL_TREE

TREE_POLICIES = (*TREES, "static")
SMALL_VLM_POLICIES = (USUAL_TREE, "pruned")


def head_drafter(
    name: str, folder: Path, target: LanguageTarget, text_ids: TextIds, eos_id: int, tree: str = USUAL_TREE
) -> Drafter:
    """The head of a folder as a drafter for `target`, whose prompts' text `text_ids` gives and whose answers `eos_id` ends.

    `tree` is one of `TREE_POLICIES`; for a small vision-language model (MASSV) one of `SMALL_VLM_POLICIES`: it grows a tree of
    its own, and `pruned` is video-SpecVLM's. Raises BadInput and BadCheckpoint, one line each.
    """
    trained = load_head(folder, target.language)
    head = trained.head
    trees = SMALL_VLM_POLICIES if isinstance(head, SmallVlm) else TREE_POLICIES
    if tree not in trees:
        raise BadInput(f"tree policy '{tree}' is unknown for head {folder.name}: choose one of {', '.join(trees)}")
    if isinstance(head, SmallVlm):
        return SmallVlmDrafter(name, head, text_ids, eos_id, Pruned(target.language) if tree == "pruned" else None)
    config = tree_config(trained, tree)
    return FeatureDrafter(name, head, head.config.language, target.language, eos_id, config, trained.view)


def tree_config(trained: TrainedHead, tree: str) -> TreeConfig:
    """The kind of tree; a static one is made for how often each of the head's choices was right when it was trained."""
    if tree != "static":
        return TREES[tree]
    if not trained.rates:
        raise BadInput("the head does not say how often its choices are right (ranks), which a static tree is made for")
    return static_tree(trained.rates)
