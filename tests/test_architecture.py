import ast
import doctest
import importlib
import inspect
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_origin

import pytest
from ignite.engine import Engine

import monai_spct
from monai_spct.workflow import bundles_folder

LAYERS = [
    ["functional", "files"],
    ["data"],
    ["networks", "losses", "transforms", "metrics"],
    ["objectives", "inferers"],
    ["workflow"],
    ["handlers"],
    ["engines"],
    ["plan", "report"],
    ["cli"],
    ["__main__"],
]
ROOT = Path(monai_spct.__file__).parent
SOURCES = sorted(path for path in ROOT.rglob("*.py") if "_bundles" not in path.parts)
PACKAGES = sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in SOURCES} - {"__init__"})


def each_source(function):
    return pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))(function)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages([str(ROOT)], "monai_spct.") if "_bundles" not in info.name]
    return [importlib.import_module(name) for name in ["monai_spct", *names]]


def package_of(name: str) -> str | None:
    """``"losses"`` for ``monai_spct.losses.self_paced_jsd``; none for ``monai_spct`` itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else None


def layer_of(package: str) -> int:
    return next(level for level, packages in enumerate(LAYERS) if package in packages)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> list[str]:
    """All modules that a file imports, wherever in it, by their absolute names."""
    names: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import in line {node.lineno}"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def calls_of(path: Path) -> list[str]:
    """The last part of the name of everything that a file calls; docstrings do not count."""
    functions = [n.func for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
    return [f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions]


def keywords_of(path: Path, function: str) -> list[dict[str, object]]:
    """The literal keyword arguments of each call of a function."""
    calls = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
    return [
        {item.arg: item.value.value for item in call.keywords if item.arg and isinstance(item.value, ast.Constant)}
        for call in calls
        if ast.unparse(call.func) == function
    ]


def test_each_package_has_its_layer():
    assert sorted(name for layer in LAYERS for name in layer) == PACKAGES


@each_source
def test_imports_point_down(path):
    mine = package_of(module_of(path))
    for name in imports_of(path):
        theirs = package_of(name)
        if name.split(".")[0] != "monai_spct" or mine is None or theirs in (mine, None):
            continue
        assert layer_of(theirs) < layer_of(mine), f"{mine} imports {name}"


def test_nothing_but_the_command_line_stands_beside_the_packages():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "cli.py"}


@each_source
def test_mathematics_needs_torch_alone(path):
    if package_of(module_of(path)) == "functional":
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert roots - sys.stdlib_module_names <= {"torch", "monai_spct"}


@each_source
def test_each_module_says_what_it_is_and_what_it_offers(path):
    tree = tree_of(path)
    docstring = ast.get_docstring(tree)
    assert docstring, "has no docstring"
    assert docstring.splitlines()[0].endswith("."), "the first line is no sentence"
    if path == ROOT / "__init__.py":
        return
    module = importlib.import_module(module_of(path))
    assert sorted(module.__all__) == list(dict.fromkeys(sorted(module.__all__))), "a name is there twice"
    for name in module.__all__:
        assert hasattr(module, name), f"`{name}` is not there"


@each_source
def test_public_functions_and_classes_are_in_all(path):
    if path.name == "__init__.py":
        return
    body = tree_of(path).body
    names = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")}
    missing = names - set(importlib.import_module(module_of(path)).__all__)
    assert not missing


def public_names() -> list[str]:
    """Classes and functions that the packages offer; type aliases have no docstring."""
    names = []
    for package in (path for path in SOURCES if path.name == "__init__.py" and path.parent != ROOT):
        module = importlib.import_module(module_of(package))
        for name in module.__all__:
            item = getattr(module, name)
            # Python 3.10 takes an alias such as `Callable[[Step], Tensor]` for a class
            if (inspect.isclass(item) and get_origin(item) is None) or inspect.isfunction(item):
                names.append(f"{module.__name__}.{name}")
    return names


@pytest.mark.parametrize("name", public_names())
def test_each_public_name_has_a_docstring_with_an_example(name):
    package, _, attribute = name.rpartition(".")
    docstring = inspect.getdoc(getattr(importlib.import_module(package), attribute))
    assert docstring, "has no docstring"
    assert "Example:" in docstring
    assert doctest.DocTestParser().get_examples(docstring), "the example has no `>>>` line"


def test_there_is_one_training_loop():
    found = {
        f"{item.__module__}.{item.__name__}"
        for module in modules()
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, Engine) and item.__module__.startswith("monai_spct")
    }
    assert found == {"monai_spct.engines.trainer.SemiSupervisedTrainer"}


@each_source
def test_no_engine_is_put_together_by_hand(path):
    assert "Engine" not in calls_of(path)


@each_source
def test_gradients_are_computed_in_engines_and_handlers_alone(path):
    if package_of(module_of(path)) not in ("engines", "handlers"):
        assert "backward" not in calls_of(path)


@each_source
def test_no_file_that_is_read_can_run_code(path):
    """Beside ruff's rules, which know neither of these."""
    assert all(given.get("weights_only") is True for given in keywords_of(path, "torch.load"))
    assert all(given.get("allow_pickle") is False for given in keywords_of(path, "np.load"))


def test_bundles_load_weights_by_the_function_that_checks_them():
    configs = "".join(config.read_text() for config in bundles_folder().rglob("*.json"))
    assert "monai_spct.networks.load_weights" in configs
    assert not [name for name in ("torch.load", "CheckpointLoader", "pickle") if name in configs]
