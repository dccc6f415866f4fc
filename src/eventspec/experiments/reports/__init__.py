"""Which results stand where: every block and chart of README and docs, made from benchmarks/results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventspec.core import BadInput
from eventspec.experiments.charts import svg
from eventspec.experiments.tables import with_blocks
from eventspec.files import parsed, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, Any]
"""What a results file holds."""
FOLDER = Path("benchmarks/results")
FASTER = "times as fast as plain decoding"


def results_of(path: Path) -> Found:
    """What a results file holds. BadInput for one of something else."""
    try:
        found = parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} holds no results ({error}): measure again, restore it, or name another file") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds no results: measure again, restore it, or name another file")
    return found


class Results:
    """The results of a checkout by name; each file is read once."""

    def __init__(self, root: Path) -> None:
        self.folder, self._read = root / FOLDER, dict[str, Found]()

    def __getitem__(self, name: str) -> Found:
        """BadInput where the file is missing or holds no results."""
        if name not in self._read:
            path = self.folder / f"{name}.json"
            if not path.exists():
                raise BadInput(f"{path} is missing: `eventspec bench run` makes it")
            self._read[name] = results_of(path)
        return self._read[name]

    def every(self, pattern: str) -> list[tuple[str, Found]]:
        """(file name, results) of all files below the folder that fit a pattern, in the order of their names."""
        paths = sorted(self.folder.glob(pattern))
        return [(path.name, self[path.relative_to(self.folder).with_suffix("").as_posix()]) for path in paths]


Block = Callable[[Results], str]
Charts = dict[str, "Figure"]


def checkout(folder: Path) -> Path:
    """The root of the checkout that a folder lies in. BadInput outside of one."""
    for root in (folder, *folder.parents):
        if (root / FOLDER).is_dir() and (root / "mkdocs.yml").is_file():
            return root
    missing = f"{FOLDER} and mkdocs.yml, with the pages that are written, are missing"
    raise BadInput(f"{folder} is in no checkout of eventspec ({missing}): go into one; `bench run` also takes --out FILE")


def written(root: Path) -> dict[Path, str]:
    """Every file that the report writes, and its text. BadInput for missing results and pages without a place for a block."""
    from eventspec.experiments.reports import alignment, deciding, documents, heads, main_job, numerics

    results, pages = Results(root), dict[str, dict[str, Block]]()
    for part in (main_job, numerics, heads, alignment, deciding, documents):
        for page, blocks in part.PAGES.items():
            pages.setdefault(page, {}).update(blocks)
    files = {page: with_blocks(root / page, {name: made(results) for name, made in own.items()}) for page, own in pages.items()}
    charts = {name: figure for part in (main_job, heads, alignment) for name, figure in part.charts(results).items()}
    files |= {f"docs/figures/{name}.svg": svg(figure) for name, figure in charts.items()}
    return {root / name: text for name, text in files.items()}


def stale(files: Mapping[Path, str]) -> list[Path]:
    """The files that are not what the results say: of a chart its data count, since its bytes depend on matplotlib."""

    def content(path: Path, text: str) -> str:
        return "".join(re.findall("<dc:description>.*?</dc:description>", text)) if path.suffix == ".svg" else text

    return [path for path, text in files.items() if not path.exists() or content(path, path.read_text()) != content(path, text)]


def write(files: Mapping[Path, str]) -> list[Path]:
    """Write what is stale, each file whole; which files that were."""
    changed = stale(files)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, files[path])
    return changed
