"""No file a user gives us is ever unpickled: no pickle.load, np.load only without pickles, torch.load only weights.

A restricted `pickle.Unpickler` subclass is allowed: it is how EventGPT's event files are read without running them.
"""

from __future__ import annotations

import ast

import pytest

UNPICKLES = {
    "pickle.load",
    "pickle.loads",
    "_pickle.load",
    "_pickle.loads",
    "dill.load",
    "joblib.load",
    "marshal.loads",
    "shelve.open",
}
LOADS_ARRAYS = {"numpy.load", "numpy.lib.format.read_array"}


def called(function: ast.expr, names: dict[str, str]) -> str:
    """The dotted name that a call goes to, import aliases resolved: `np.load` -> `numpy.load`."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    return ".".join([names.get(function.id, function.id), *parts])


def imported(tree: ast.Module) -> dict[str, str]:
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def unsafe(call: ast.Call, name: str) -> str | None:
    given = {word.arg: word.value for word in call.keywords}

    def says(argument: str, wanted: bool) -> bool:
        value = given.get(argument)
        return isinstance(value, ast.Constant) and value.value is wanted

    if name in UNPICKLES:
        return f"{name} runs whatever the file says"
    if name == "torch.load" and not says("weights_only", True):
        return "torch.load without weights_only=True"
    allows = "allow_pickle" in given or (name in LOADS_ARRAYS and (len(call.args) > 2 or None in given))
    if allows and not says("allow_pickle", False):
        return f"{name or 'a call'} may unpickle: allow_pickle must be the literal False"
    return None


def findings(modules: dict[str, str]) -> list[str]:
    found = []
    for path, text in modules.items():
        tree = ast.parse(text)
        names = imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (trouble := unsafe(node, called(node.func, names))):
                found.append(f"{path}:{node.lineno}: {trouble}")
    return found


def test_the_package_never_unpickles(modules: dict[str, str]) -> None:
    found = findings({name: text for name, text in modules.items() if name.startswith("src/")})
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.load(f)",
        "from pickle import loads as read\nread(b)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import numpy as np\nnp.load(f, None, True)",
        "import numpy as np\nnp.load(f, allow_pickle=flag)",
        "import numpy as np\nnp.load(f, **options)",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "from torch import load\nload(f, map_location='cpu')",
    ],
)
def test_a_planted_load_is_found(text: str) -> None:
    assert len(findings({"a.py": text})) == 1


def test_safe_loads_pass() -> None:
    calls = ("np.load(f)", "np.load(f, allow_pickle=False)", "torch.load(f, weights_only=True)", "json.load(f)")
    text = "\n".join(["import numpy as np, torch, json", *calls])
    assert findings({"a.py": text}) == []
