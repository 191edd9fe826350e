import ast
import inspect
import json
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import monai.bundle
import pytest
from monai.bundle import ConfigParser

import monai_spct
from monai_spct.workflow import check_settings

TOOLS = "(?!run )"
ROOT = Path(monai_spct.__file__).parent.parent
CONFIGS = ROOT / "bundles" / "acdc" / "configs"
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "bundles").rglob("*.md"))]
    if path.is_file() and "_build" not in path.parts
]

pytestmark = pytest.mark.skipif(not (ROOT / "docs" / "conf.py").is_file(), reason="pages come with a checkout")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def commands(pattern: str = "run "):
    """Every bundle command that a page tells the reader to type, as the shell would split it."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = "".join(blocks(text, "(?:bash|console|sh|shell)")).replace("\\\n", " ").splitlines()
        for number, line in enumerate(line for line in lines if re.search(rf"monai\.bundle {pattern}", line)):
            yield pytest.param(text, shlex.split(line), id=f"{page.relative_to(ROOT)}-{number}")


def in_the_checkout(file: str) -> Path:
    """Where a file of a command is: `my_acdc` and `liver` are what the pages call a reader's own bundles."""
    parts = Path(file).parts
    if parts[0] in ("my_acdc", "liver"):
        parts = ("bundles", "methods", *parts[2:]) if parts[1] == "methods" else ("bundles", "acdc", *parts[1:])
    return ROOT.joinpath(*parts)


def section(page: str, heading: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]


def rows(text: str, columns: int) -> list[list[str]]:
    """The body of all tables with this many columns, without the backticks of a cell that is all code."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            found.append([cell[1:-1] if re.fullmatch(r"`[^`]*`", cell) else cell for cell in cells])
    return found


@pytest.mark.parametrize(("text", "words"), list(commands()))
def test_a_command_names_files_runs_and_options_that_exist(text, words):
    if "torchrun" in words:  # several processes of it
        words = ["python", *words[words.index("-m") :]]
    if words[0] == "srun":
        words = words[1:]
    assert words[:4] == ["python", "-m", "monai.bundle", "run"]
    given = words[words.index("--config_file") + 1]
    names = ast.literal_eval(given) if given.startswith("[") else [given]
    # a bare name is an overlay that the page itself shows
    files = [in_the_checkout(name) for name in names if "/" in name]
    assert all(file.is_file() for file in files), names
    assert all(f"`{name}`" in text and blocks(text, "json") for name in names if "/" not in name)
    assert words[4] in json.loads(files[0].read_text(encoding="utf-8"))
    parser = ConfigParser(ConfigParser.load_config_files(files))
    given = {key[2:]: value for key, value in pairwise(words[7:]) if key.startswith("--")}
    parser.update({key: value for key, value in given.items() if key != "tracking"})
    check_settings(parser, files[0].parent)


@pytest.mark.parametrize(("text", "words"), list(commands(TOOLS)))
def test_a_command_of_monais_other_tools_names_files_and_options_that_exist(text, words):
    assert words[:3] == ["python", "-m", "monai.bundle"], text
    options = {a[2:]: b for a, b in pairwise(words) if a.startswith("--")}
    root = options.pop("bundle_root", None)  # a key of the config, which MONAI's tools read without a workflow
    assert options.keys() <= set(inspect.signature(getattr(monai.bundle, words[3])).parameters)
    configs = options.get("config_file", "[]")
    for file in (*(ast.literal_eval(configs) if configs.startswith("[") else [configs]), options["meta_file"]):
        assert in_the_checkout(file).is_file(), file
    if "config_file" in options:
        assert in_the_checkout(configs).is_relative_to(in_the_checkout(str(root)))
        assert words[4] in json.loads(in_the_checkout(configs).read_text(encoding="utf-8"))


def test_the_readers_commands_are_found():
    assert len(list(commands())) > 10
    assert len(list(commands(TOOLS))) > 5


def test_the_commands_of_a_mistyped_page_would_be_refused():
    line = "python -m monai.bundle run training --config_file bundles/acdc/configs/train.json --label_ratio 1"
    with pytest.raises(ValueError, match="`labeled_ratio`"):
        test_a_command_names_files_runs_and_options_that_exist("", shlex.split(line))


@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_the_settings_of_a_config_are_listed_with_their_defaults(name):
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    listed = [(row[0], json.loads(row[1])) for row in rows(section("reference/config.md", f"`{name}.json`"), 3)]
    assert len(listed) == len(dict(listed))
    plain = {key: value for key, value in config.items() if not isinstance(value, (dict, list))}
    assert dict(listed) == plain | {key: value for key, value in listed if value == config[key] == []}


def test_the_components_of_the_training_are_listed():
    config = json.loads((CONFIGS / "train.json").read_text(encoding="utf-8"))
    listed = [row[0] for row in rows(section("reference/config.md", "`train.json`"), 2)]
    assert sorted(listed) == sorted(key for key, value in config.items() if isinstance(value, (dict, list)))


def test_what_differs_between_the_bundles_is_listed():
    listed = {row[0]: row[1:] for row in rows(section("reference/config.md", "Where the bundles differ"), 5)}
    configs = [
        json.loads((ROOT / "bundles" / name / "configs" / "train.json").read_text(encoding="utf-8"))
        for name in ("acdc", "prostate", "spleen", "atrium")
    ]
    names = {key for config in configs for key in config if any(other.get(key) != config[key] for other in configs)}
    assert set(listed) == names
    for name, cells in listed.items():
        for cell, config in zip(cells, configs, strict=True):
            value = config.get(name)
            if name == "cases":
                assert value["_target_"] == f"monai_spct.data.{cell}"
            elif name in config and not isinstance(value, (dict, list)):
                assert json.loads(cell) == value
            else:  # in words
                assert (name in config) == (cell != "not there")


def test_each_overlay_is_listed():
    listed = {row[0] for row in rows(section("reference/config.md", "Overlays"), 3)}
    folders = (ROOT / "bundles").glob("*/configs")
    overlays = [
        path
        for folder in folders
        for path in folder.glob("*.json")
        if path.name != "metadata.json" and '"imports"' not in path.read_text(encoding="utf-8")
    ]
    overlays += (
        path
        for folder in ("augmentations", "methods", "networks")
        for path in (ROOT / "bundles" / folder).glob("*.json")
    )
    assert listed == {path.relative_to(ROOT).as_posix() for path in overlays}


def test_the_dictionary_of_symbols_names_keys_that_exist():
    config = json.loads((CONFIGS / "train.json").read_text(encoding="utf-8"))
    lines = [line for line in section("explanation/method.md", "Symbols and names").splitlines() if line.count("|") > 4]
    keys = [key for line in lines for key in re.findall(r"`([a-z_#]+)`", line.rsplit(" | ", 1)[-1])]
    assert len(keys) > 10
    for key in keys:
        place = config
        for part in key.split("#"):
            assert part in place, key
            place = place[part]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_well_made(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# ")
    for block in blocks(text, "json"):
        json.loads(block)
    assert not re.search(r"/(work|tmp|home|root)/", text)


def test_the_links_of_the_readme_hold_where_it_is_shown_alone():
    """PyPI shows it without the files beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = project["urls"]["Homepage"]
    raw = home.replace("github.com", "raw.githubusercontent.com")
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10
    for link in [*links, *project["urls"].values()]:
        assert link.startswith("https://")
        if match := re.match(rf"(?:{home}/blob|{raw})/main/([^#]*)", link):
            assert (ROOT / match[1]).is_file(), link


def test_the_term_of_the_guide_joins_the_objective(tmp_path, monkeypatch):
    guide = (ROOT / "docs" / "how-to" / "add_a_term.md").read_text(encoding="utf-8")
    [module], [overlay] = blocks(guide, "python"), blocks(guide, "json")
    (tmp_path / "my_terms.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "certainty.json").write_text(overlay, encoding="utf-8")
    files = [str(CONFIGS / "train.json"), str(tmp_path / "certainty.json")]
    parser = ConfigParser(ConfigParser.load_config_files(files))
    cases = [{"patient": "a"}]  # terms without labels are there if there is something unlabeled
    split = {"labeled": cases, "unlabeled": cases, "validation": [], "test": []}
    parser["split"] = {"_target_": "monai_spct.data.Split", **split}
    terms = parser.get_parsed_content("objective").terms
    assert list(terms) == ["supervised", "co_training", "consistency", "certainty"]
    assert terms["certainty"].weight(0.5) == 0.1


def test_a_page_says_what_monais_warning_of_configs_means(tmp_path):
    """It quotes the warning that each run begins with, and says what to do about it."""
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.warns(UserWarning, match="parsing config_file") as caught:
        monai.bundle.create_workflow(config_file=str(config), logging_file=False)
    [said] = {str(warning.message) for warning in caught if "parsing config_file" in str(warning.message)}
    quoted = " ".join(blocks(page, "text")[0].split()).removeprefix("UserWarning: ")
    parts = [part.strip() for part in re.split(r"\[\.\.\.\]|\.\.\.", quoted)]
    assert len(parts) == 3
    assert all(part in " ".join(said.split()) for part in parts), said
    advice = " ".join(page.split())
    assert "run configs and overlays only if you would run a script from the same source" in advice
    assert "The same holds for values on the command line" in advice
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "\nexplanation/security\n" in index
