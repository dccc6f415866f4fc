"""The head of a folder as a drafter."""

from __future__ import annotations

from pathlib import Path

from eventspec.core import BadInput, Drafter
from eventspec.drafters.heads import Drafting, load_head
from eventspec.models.prompt import TextIds
from eventspec.nn.llama import LanguageEnds
from eventspec.pairs.specs import USUAL_TREE


def head_drafter(
    name: str, folder: Path, target: LanguageEnds, text_ids: TextIds | None, eos_id: int, tree: str = USUAL_TREE
) -> Drafter:
    """The head of a folder as a drafter for `target`, whose prompts' text `text_ids` gives and whose answers `eos_id` ends;
    `tree` is one of the head's tree policies. Raises BadInput and BadCheckpoint, one line each."""
    trained = load_head(folder, target)
    if tree not in (known := trained.head.tree_policies):
        raise BadInput(f"tree policy '{tree}' is unknown for head {folder.name}: choose one of {', '.join(known)}")
    return trained.head.drafter(name, Drafting(target, text_ids, eos_id, tree, trained.rates))
