"""``eventspec bench``: measured comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventspec.cli.events import Order, Sensor
from eventspec.cli.help import App
from eventspec.cli.paths import given_path

if TYPE_CHECKING:
    from eventspec.experiments.arms import Arm
    from eventspec.pairs import Pair

bench = App(help="Measure methods against each other, with their controls and ceilings.", no_args_is_help=True)


Contexts = Annotated[
    list[str] | None,
    typer.Option(
        help="cold; warm: another question about the recording was asked before; live: frames were read as they came, nothing "
        "was asked. Repeat it for several."
    ),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(help="One row more: another event drafter, NAME or NAME:MAPPING (see generate --vocabulary). Repeatable."),
]
Heads = Annotated[
    list[str] | None,
    typer.Option(
        help="One row more: method eagle with another head, NAME or NAME:TREE (dynamic, static, published, chain; "
        "massv:pruned). Repeatable."
    ),
]
Compressions = Annotated[
    list[str] | None, typer.Option(help="For method compressed-target: prune:N, pool:N, attention:N or packer:N. Repeatable.")
]


@bench.callback()
def _group() -> None:
    pass


@bench.command()
def compare(
    questions: Annotated[Path, typer.Option(parser=given_path, help="A qa.jsonl, as `scenes make` writes it.")],
    out: Annotated[Path, typer.Option(parser=given_path, help="Rows go here, one JSON line a sample and method.")],
    method: Annotated[list[str], typer.Option(help="May be repeated; include autoregressive for speedups.")],
    pair: Annotated[str, typer.Option(help="A bundled pair, or the folder of a pair.toml.")] = "embedded",
    events: Annotated[
        list[str] | None, typer.Option(help="real, or a control: blank, shuffled (another clip's). Repeat it for several.")
    ] = None,
    context: Contexts = None,
    drafter: Drafters = None,
    head: Heads = None,
    compress: Compressions = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many questions; 0 = all.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    sensor: Sensor = None,
    monotonic: Order = "raise",
    device_plan: Annotated[str, typer.Option(help="auto, one or two devices (on a CPU: cores).")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """The same questions with several methods, interleaved; prints the summary."""
    from rich.console import Console
    from rich.progress import Progress

    from eventspec.core import BadInput, Sampling
    from eventspec.events.formats import parse_sensor_size
    from eventspec.experiments.compare import compare as run
    from eventspec.pairs import check_method, load_pair, warm_up
    from eventspec.recordings import Recording
    from eventspec.recordings.qa import read_questions

    methods = [check_method(name) for name in dict.fromkeys(method)]
    if out.is_dir():
        raise BadInput(f"{out} is a folder: name a file for the rows, e.g. {out / 'rows.jsonl'}")
    if out.exists() and questions.exists() and out.samefile(questions):
        raise BadInput(f"{out} holds the questions: name another file for the rows")
    size = parse_sensor_size(sensor) if sensor is not None else None
    asked = read_questions(questions, limit)
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
    ready = warm_up(load_pair(pair, device_plan, fit=False))
    others = _others(ready, (events or ["real"])[0], drafter or [], head or [], compress or [])
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=(page := Console(stderr=True)), transient=True, disable=not page.is_terminal) as bar:
        task = bar.add_task("comparing", total=len(asked))
        found = run(
            ready,
            asked,
            methods,
            sampling,
            list(dict.fromkeys(events or ["real"])),
            out,
            lambda done, total: bar.update(task, completed=done, total=total),
            lambda path: Recording.open(path, size, monotonic),
            others,
            contexts=list(dict.fromkeys(context or ["cold"])),
        )
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print(found)


def _others(pair: Pair, events: str, drafters: list[str], heads: list[str], compressions: list[str]) -> list[Arm]:
    """Arms beyond the methods: other event drafters, heads and compressions of the same target."""
    from eventspec.experiments.arms import Arm
    from eventspec.pairs import warm_up
    from eventspec.pairs.methods import EVENT_METHOD, LOSSY
    from eventspec.pairs.specs import DrafterSpec

    specs = [(name, DrafterSpec.parse(name, pair.parts.drafters)) for name in drafters]
    made = [(EVENT_METHOD, name, pair.with_event_drafter(spec.drafter, spec.mapping)) for name, spec in specs]
    made += [("eagle", name, warm_up(pair.with_head(name), ("eagle",))) for name in heads]
    made += [(LOSSY, name, pair.with_compression(name)) for name in compressions]
    return [Arm(f"{method}, {name}", method, other, events) for method, name, other in made]


def _print(found: dict[str, Any]) -> None:
    """The figures that somebody has, a column a method; as many tables below each other as the page is too narrow for."""
    from rich.console import Console
    from rich.table import Table

    page, methods = Console(), found["methods"]
    names = {figure: None for own in methods.values() for figure in own if figure != "against"}
    figures = [figure for figure in names if any(_short(own.get(figure)) != "-" for own in methods.values())]
    title = f"n = {found['n']}, {found['environment']['device_plan']} device(s)"
    for beside in _beside(methods, figures, page.width):
        made = Table(box=None, header_style="bold", title=title, title_justify="left")
        made.add_column("figure")
        for name in beside:
            made.add_column(name, justify="right", overflow="fold")
        for figure in figures:
            made.add_row(figure, *(_short(methods[name].get(figure)) for name in beside))
        page.print(made)


def _beside(methods: dict[str, dict[str, Any]], figures: list[str], width: int) -> list[list[str]]:
    """The methods in groups whose columns fit beside each other, and beside the figures' names, into `width` letters."""
    gap = 2  # around each column
    first = max(len(figure) for figure in ["figure", *figures]) + gap
    groups: list[list[str]] = []
    used = width
    for name, own in methods.items():
        wanted = max(len(text) for text in (name, *(_short(own.get(figure)) for figure in figures))) + gap
        if not groups or used + wanted > width:
            groups.append([])
            used = first
        groups[-1].append(name)
        used += wanted
    return groups


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "-" if None in value else " .. ".join(_short(v) for v in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
