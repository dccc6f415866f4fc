"""``eventspec doctor``: what this machine has, and what to install for the rest. Facts only; nothing is downloaded."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from dataclasses import asdict
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, Any

import typer

from eventspec.cli import options
from eventspec.cli.bars import announced
from eventspec.errors import BadInput, several
from eventspec.machine import usable_cores

Facts = dict[str, Any]
GIB = 2**30


def doctor(
    as_json: options.AsJson = False,
    self_test: Annotated[bool, typer.Option(help="Answer for a minute with every method: is it the target's answer?")] = False,
    seconds: Annotated[float | None, typer.Option(help="How long --self-test goes on; default: 60.")] = None,
    pair: Annotated[str | None, typer.Option(help="Whose answers --self-test compares: nano, or a pair.toml's folder.")] = None,
) -> None:
    """What this machine can run, and what to install for the rest; with --self-test, whether its answers are exact."""
    for name, value in {"--seconds": seconds, "--pair": pair}.items():
        if value is not None and not self_test:
            raise BadInput(f"{name} is for --self-test: add that, or leave it out")
    lasts = 60.0 if seconds is None else seconds
    if not 1 <= lasts <= 86_400:
        raise BadInput(f"--seconds is {lasts:g}: give 1 to 86400")
    if self_test:
        from eventspec.pairs.pair_file import PairFile, folder_of

        PairFile.read(folder_of(pair or "embedded")).check_models()
        announced(f"answering with every method for {lasts:g} s")
    facts = examine()
    if self_test:
        facts["self_test"] = _self_test(pair or "embedded", lasts)
    typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(page(facts)))
    if self_test and not facts["self_test"]["exact"]:
        raise typer.Exit(1)


def _self_test(whose: str, seconds: float) -> Facts:
    """Every method and head of a pair beside plain decoding, on this machine's own kernels, until time is up."""
    from eventspec.experiments.identity import Tally, compare_answers, heads_of, methods_of, rehearsal, totals
    from eventspec.experiments.names import BASE
    from eventspec.pairs import load_pair

    with load_pair(whose) as pair:
        arms, tallies = [*methods_of(pair), *heads_of(pair)], dict[str, Tally]()
        until = time.monotonic() + seconds

        def over() -> bool:  # on a slow machine two answers are waited for all the same: none would say nothing
            return time.monotonic() > until and sum(t.answers for name, t in tallies.items() if name != BASE) >= 2

        compare_answers(pair, arms, rehearsal(pair), over, tallies)
        rounding = pair.target.limits.rounding
    counted = {name: asdict(tally) for name, tally in tallies.items() if name != BASE and tally.answers}
    summed = totals(tallies)
    # An arm that drafted nothing gives the target's answer for no merit of its own.
    untested = [arm.name for arm in arms if not counted.get(arm.name, {}).get("drafted")]
    exact = summed["different"] == summed["failed"] == 0 and len(untested) < len(arms)
    return {"exact": exact, "rounding": rounding, **summed, "arms": counted, "untested": untested}


def examine() -> Facts:
    """Everything the command prints, as plain values; what is unknown is None."""
    from eventspec import __version__

    facts: Facts = {
        "eventspec": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": {"usable": usable_cores(), "total": os.cpu_count()},
        "memory_gib": _memory(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "torch": _torch(),
        "native_trees": _native(),
        "extras": _extras(),
        "bundled_pairs": _bundled_pairs(),
    }
    return {**facts, "warnings": _warnings(facts)}


def _memory() -> dict[str, float] | None:
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", table.read_text(), re.MULTILINE)}
    return {name: round(kib[key] * 1024 / GIB, 1) for name, key in (("total", "MemTotal"), ("available", "MemAvailable"))}


def _torch() -> Facts:
    """Version, build and devices. A broken install is a fact too: `error` says what the import said."""
    try:
        import torch
    except Exception as error:  # a missing library, or a build for another machine, raises nearly anything
        return {"version": None, "error": f"{type(error).__name__}: {error}"}
    found = range(torch.cuda.device_count())
    described = [torch.cuda.get_device_properties(index) for index in found]
    return {
        "version": torch.__version__,
        "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "threads": torch.get_num_threads(),
        "cuda_devices": [{"name": one.name, "memory_gib": round(one.total_memory / GIB, 1)} for one in described],
    }


def _native() -> bool | None:
    """Whether there is machine code for draft trees and prompts here, which is compiled now if it never was; None where torch
    does not import."""
    try:
        from eventspec.nn.cpu.native import library

        return library() is not None
    except Exception:  # as above
        return None


def _extras() -> dict[str, Facts] | None:
    """Extra -> what is missing of it, and how to install it. None when eventspec itself runs uninstalled."""
    try:
        wanted = metadata.requires("eventspec") or []
    except metadata.PackageNotFoundError:
        return None
    parts: dict[str, set[str]] = {}
    for line in wanted:  # such as: transformers<5.24,>=5.17; extra == "hf"
        name, extra = re.match(r"[\w.-]+", line), re.search(r"""extra == ["']([\w-]+)""", line)
        if name and extra and extra[1] != "dev" and name[0] != "eventspec":
            parts.setdefault(extra[1], set()).add(name[0])
    return {
        extra: {
            "missing": (missing := sorted(name for name in names if not _installed(name))),
            "install": f"pip install 'eventspec[{extra}]'" if missing else None,
        }
        for extra, names in sorted(parts.items())
    }


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _bundled_pairs() -> dict[str, Facts]:
    """Pair -> size of its weights, for every pair.toml that came with the package."""
    from eventspec.pairs.pair_file import bundled

    sizes = {name: sum(file.stat().st_size for file in folder.rglob("*.safetensors")) for name, folder in bundled().items()}
    return {name: {"weights_mib": round(size / 2**20, 1)} for name, size in sizes.items()}


def _warnings(facts: Facts) -> list[str]:
    """What would surprise later, each with what to do about it."""
    warnings = []
    load, usable = facts["load_average"], facts["cores"]["usable"]
    if facts["torch"]["version"] is None:
        warnings.append(f"torch does not import ({facts['torch']['error']}): reinstall eventspec in a fresh environment")
    elif facts["torch"]["build"] != "CPU" and not facts["torch"]["cuda_devices"]:
        warnings.append("torch is a CUDA build but sees no device: models run on the CPU")
    if facts["native_trees"] is False:
        warnings.append(
            "no C compiler (cc, gcc, clang) whose code runs here: drafts and prompts are made by torch, more slowly"
        )
    if util.find_spec("torchvision"):
        warnings.append(
            "torchvision present: may break transformers where it was built for another torch, and changes pixels where "
            "transformers prefers it; eventspec does not need it: pip uninstall torchvision"
        )
    if facts["extras"] is None:
        warnings.append("eventspec runs uninstalled, so its extras are unknown: pip install -e . in the project's folder")
    if not facts["bundled_pairs"]:
        warnings.append("no bundled pair, so `--pair nano` will not work: reinstall eventspec, or `eventspec train embedded`")
    elif empty := [name for name, pair in facts["bundled_pairs"].items() if not pair["weights_mib"]]:
        warnings.append(f"pair without weights: {', '.join(empty)}; reinstall eventspec")
    if load is not None and load > 0.5 * usable:
        warnings.append(f"load average {load:.1f} on {usable} cores: times measured now will be too long")
    return warnings


def page(facts: Facts) -> list[str]:
    torch, memory = facts["torch"], facts["memory_gib"]
    rows = [
        ("eventspec", facts["eventspec"]),
        ("python", f"{facts['python']} on {facts['platform']}"),
        ("cores", f"{facts['cores']['usable']} usable of {facts['cores']['total']}"),
        ("memory", f"{memory['available']} of {memory['total']} GiB available" if memory else "unknown"),
        ("torch", f"{torch['version']}, {torch['build']} build, {torch['threads']} threads" if torch["version"] else "missing"),
    ]
    rows += [("cuda device", f"{one['name']}, {one['memory_gib']} GiB") for one in torch.get("cuda_devices", [])]
    if torch.get("cuda_devices") == []:
        rows.append(("cuda device", "none"))
    rows += [("pair", f"{name}, {pair['weights_mib']} MiB of weights") for name, pair in facts["bundled_pairs"].items()]
    for extra, state in (facts["extras"] or {}).items():
        missing = f"missing {', '.join(state['missing'])}: {state['install']}" if state["missing"] else "installed"
        rows.append((f"[{extra}]", missing))
    rows += _tested(facts["self_test"]) if "self_test" in facts else []
    rows += [("warning", text) for text in facts["warnings"]]
    return [f"{name:<12} {value}" for name, value in rows]


def _tested(found: Facts) -> list[tuple[str, str]]:
    """The self-test in a line, and a line for every arm that is not as it should be."""
    untested = found["untested"]
    tested = len({*found["arms"]} - {*untested})
    same = "every one is plain decoding's" if found["exact"] else f"{found['different']} differ from plain decoding"
    what = f"{several(found['answers'], 'answer')}, {several(found['tokens'], 'token')} of methods and heads ({tested}): {same}"
    what = what if tested else "nothing was tested in that time"
    rows = [f"{what}; {found['near_ties']} near ties, closer than {found['rounding']:.1g}"]
    if untested:
        rows.append(f"{len(untested)} were not reached or drafted nothing, so not tested: {', '.join(untested[:4])}")
    rows += [
        f"{name}: {arm['different']} of {arm['answers']} differ, its drafter failed in {arm['failed']}; "
        f"{json.dumps(arm['examples'][:1])}"
        for name, arm in found["arms"].items()
        if arm["different"] or arm["failed"]
    ]
    return [("self-test", row) for row in rows]
