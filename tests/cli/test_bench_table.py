"""The table of ``bench compare`` on narrow and wide pages."""

from __future__ import annotations

from typing import Any

import pytest

from eventspec.cli.bench import _print

METHODS = ("autoregressive", "cross-modal", "eagle", "specvlm", "ngram", "compressed-target", "cross-modal, drafter_fine:auto")
FIGURES = {"tau": 1.0, "exact_match_short": None, "first_provisional_ms": 12345.678, "speedup_ci95": [1.234, 5.678]}


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_no_name_and_no_figure_is_cut(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    figures: dict[str, Any] = {name: dict(FIGURES) for name in METHODS}
    figures["autoregressive"] = {"tau": 1.0, "speedup_ci95": [None, None]}
    _print({"n": 2, "environment": {"device_plan": "one"}, "methods": figures})
    page = capsys.readouterr().out
    assert all(name in page for name in METHODS)
    assert page.count("12345.678") == page.count("1.234 .. 5.678") == len(METHODS) - 1
    assert "\N{HORIZONTAL ELLIPSIS}" not in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= width
    assert "exact_match_short" not in page, "nobody has it"
    assert (page.count("n = 2") == 1) == (width == 400)
