"""``eventspec bench run``, ``gpu`` and ``report``: measurements that are published, and the pages that publish them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eventspec.cli import options
from eventspec.cli.bars import Report, tracked, waiting
from eventspec.errors import BadInput

Folder = Annotated[list[Path] | None, options.path("Of a training or a checkpoint, for those that read some. Repeatable.")]
Work = Annotated[Path | None, options.path("Scenes and rows stay here; else rows are kept until all are measured.")]
Out = Annotated[Path | None, options.path("The results file; what else it holds stays.")]
Quick = Annotated[bool, typer.Option("--quick", help="The smallest sizes, which show that it runs.")]


def run(
    name: Annotated[list[str] | None, typer.Argument(help="Which experiments; without any, they are listed.")] = None,
    pair: options.Pair = "embedded",
    folder: Folder = None,
    work: Work = None,
    out: Out = None,
    quick: Quick = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what the results file holds.")] = False,
) -> None:
    """Measure what README and docs publish. Results go into benchmarks/results of the checkout, or into --out; with --quick
    alone they are printed. `bench report` writes the pages."""
    with waiting("loading"):
        from eventspec.experiments.measures import EXPERIMENTS, check
        from eventspec.experiments.measures import run as measure
        from eventspec.experiments.measures.setup import Setup
        from eventspec.experiments.reports import checkout

    if not name:
        for known, it in EXPERIMENTS.items():
            typer.echo(f"{known:16}{it.about}{f'; --folder: {it.folders}' if it.folders else ''}")
        return
    folders = tuple(folder or ())
    check(name, folders)
    if out is not None and len({EXPERIMENTS[one].results for one in name}) > 1:
        raise BadInput("these experiments have results files of their own: run one with --out, or leave it out")
    places = {one: _place(EXPERIMENTS[one].results, out, quick) for one in name}
    scratch = work or (None if quick else out.with_suffix(".work") if out else checkout(Path.cwd()) / "runs/bench")
    try:
        with tracked() as show:
            for one, place in places.items():
                setup = Setup(pair, quick, folders, scratch, keep=work is not None, progress=partial(_show, show, one))
                found = measure(one, setup, place, fresh)
                typer.echo(json.dumps(found) if place is None else f"{one}: {place}")
    except KeyboardInterrupt:
        if scratch is not None:
            typer.echo(f"what was measured is kept in {scratch} and the results: the same line goes on with it", err=True)
        raise


def _place(results: str, out: Path | None, quick: bool) -> Path | None:
    """Where results go; None where they are printed. BadInput where that cannot be written."""
    from eventspec.experiments.reports import FOLDER, checkout
    from eventspec.files import check_writable

    if out is None and quick:
        return None
    place = out or checkout(Path.cwd()) / FOLDER / f"{results}.json"
    check_writable(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _show(show: Report, name: str, share: float) -> None:
    show(name, share, {})


def gpu(
    out: Out = None,
    quick: Quick = False,
    device: Annotated[str, typer.Option(help="cuda, cuda:1, or cpu.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
) -> None:
    """What the stages of a 7B pair with random weights take on a GPU, as JSON; --out keeps what there is after every part."""
    with waiting("loading"):
        from eventspec.experiments.measures.gpu import GpuSetup, measure
        from eventspec.files import check_writable, write_text

    if out is not None:
        check_writable(out)
    found = {}
    for found in measure(GpuSetup(device, dtype, *((1, 1) if quick else (32, 20)))):
        if out is not None:
            write_text(out, json.dumps(found, indent=1) + "\n")
    typer.echo(json.dumps(found, indent=1))


def report(check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 where a page differs.")] = False) -> None:
    """Write what README and docs say of benchmarks/results, in the checkout that the current folder lies in."""
    with waiting("reading results"):
        from eventspec.experiments.reports import checkout, stale, write, written

        root = checkout(Path.cwd())
        files = written(root)
        changed = stale(files) if check else write(files)
    for path in changed:
        what = "is not what the results say: eventspec bench report writes it" if check else "written"
        typer.echo(f"{path.relative_to(root)} {what}", err=check)
    if not changed:
        typer.echo(f"{len(files)} files are what the results say")
    elif check:
        raise typer.Exit(1)
