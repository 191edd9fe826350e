"""A report on a folder of runs, done or not: its files, its page, and what a user types for it."""

import base64
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.report import Figure, Show, Table, write_report
from tests.forks import forked
from tests.report.made_up import make_runs

BETTER = {"labeled_only": (0.0, 0.02), "ua_mt": (0.04, 0.06)}
CASES = tuple(f"patient{patient:03d}_frame{frame:02d}" for patient in (4, 7, 9) for frame in (1, 15))
SHOW = Show(
    (Table(("dsc", "hd"), title="a < b"), Figure("curves"), Figure("alpha_jsd", title="Divergence", alphas=(0.0,))),
    "Systems & <scores>",
)


class Page:
    """Images, links, table rows and text of a page, which must be well-formed XML but for its ``meta`` and ``img``."""

    def __init__(self, text: str) -> None:
        root = ElementTree.fromstring(re.sub("<(meta|img)([^>]*)>", r"<\1\2/>", text.removeprefix("<!DOCTYPE html>")))
        self.images = [image.get("src", "") for image in root.iter("img")]
        self.links = [value for tag in root.iter() for name, value in tag.items() if name in ("src", "href")]
        self.rows = [[cell.text for cell in row] for row in root.iter("tr")]
        self.said = " ".join("".join(root.itertext()).split())


@pytest.fixture
def folder(tmp_path) -> Path:
    values = np.array([0.8, 0.81, 0.82] * 2)
    scores = {method: [values + one for one in better] for method, better in BETTER.items()}
    make_runs(tmp_path / "runs", scores, cases=CASES)
    return tmp_path / "runs"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_each_table_and_figure_has_its_files_and_all_are_on_one_page(folder):
    assert write_report(folder, show=SHOW) == folder / "report" / "report.html"
    files = {"report.html", "report.md", "1_dsc_hd.csv", "1_dsc_hd.tex", "2_curves.png", "3_alpha_jsd.png"}
    assert names(folder / "report") == files
    page = Page((folder / "report" / "report.html").read_text(encoding="utf-8"))
    assert page.links == page.images, "it needs no other file"
    for source in page.images:
        picture = Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"))))
        assert np.asarray(picture.convert("L")).std() > 5, "something is drawn"
    # runs are better by 0, 0.02, 0.04 and 0.06; cases by 0, 0.01 and 0.02, twice
    assert page.rows == [
        ["method", "DSC (%)", "HD (mm)"],
        ["labels only", "82.00 (1.41)", "18.00 (1.41)"],
        ["UA-MT", "86.00 (1.41)", "14.00 (1.41)"],
    ]
    made = "4 of 4 runs are done. Made with seeds 0, 1; commit 0123abc; monai_spct 0.1.0; torch 2.8.0"
    for text in ("Systems & <scores>", "a < b", made, "3 patients"):
        assert text in page.said
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "| UA-MT       | <u>**86.00 (1.41)**</u> | <u>**14.00 (1.41)**</u> |" in text
    assert "![Divergence](3_alpha_jsd.png)" in text
    assert 'Same in all runs: dataset = acdc, network = enet, overlays = ["small"].' in text


def test_by_default_there_are_scores_and_curves(folder):
    write_report(folder)
    assert names(folder / "report") == {
        "report.html", "report.md", "1_dsc.csv", "1_dsc.tex", "2_hd.csv", "2_hd.tex", "3_curves.png",
    }  # fmt: skip


def test_a_report_is_of_the_present_state(folder):
    (folder / "report.yaml").write_text("show: [{table: dsc}, {figure: curves}]")
    write_report(folder)
    (folder / "report.yaml").write_text("show: [{table: hd}]")
    (folder / "ua_mt_1" / "eval" / "summary.json").unlink()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert names(folder / "report") == {"report.html", "report.md", "1_hd.csv", "1_hd.tex"}
    assert "3 of 4 runs are done." in page.said
    assert "No result yet of" in page.said
    some = write_report(folder / "labeled_only_0", folder / "labeled_only_1", show=SHOW)
    assert "2 of 2 runs are done." in Page(some.read_text(encoding="utf-8")).said


def test_pictures_that_cannot_be_drawn_are_explained_and_the_rest_is_there(folder):
    (folder / "ua_mt_0" / "models").mkdir()
    (folder / "ua_mt_0" / "models" / "model.pt").touch()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "labeled_only_0: there is no" in page.said
    assert "has no `network`: there are no slices to show of it." in page.said
    assert "There is no slice to show." in page.said
    assert len(page.images) == 1


# As it is typed


def test_a_report_on_the_command_line(folder):
    (folder.parent / "mine.yaml").write_text("title: Mine\nshow: [{table: dsc}]")
    words = ["report", "runs", "--to", "here/it", "--show", "mine.yaml", "--data", "acdc=/data/acdc"]
    done = forked(["-W", "error::FutureWarning", "-m", "monai_spct", *words], folder.parent)
    assert (done.returncode, done.stdout.strip()) == (0, str(Path("here/it/report.html"))), done.stderr
    assert "Mine" in Page((folder.parent / "here" / "it" / "report.html").read_text(encoding="utf-8")).said
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there are no runs in nowhere: no folder below it has a cell.json."),
        (["runs", "--data", "acdd=x"], "`acdd` in `data` is no dataset of these runs. Did you mean `acdc`?"),
        (["runs", "--data", "x"], "`--data` must be a dataset and its folder, such as acdc=/data/ACDC, got x."),
        (["runs", "--show", "mine"], "mine: "),
    ],
    ids=str,
)
def test_what_cannot_be_reported_is_refused_without_a_traceback(folder, monkeypatch, words, message):
    monkeypatch.chdir(folder.parent)
    result = CliRunner().invoke(app, ["report", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert not (folder / "report").exists()


def test_a_figure_of_a_formula_needs_no_runs(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--show", "alpha_jsd"])
    assert names(tmp_path / "report") == {"report.html", "report.md", "1_alpha_jsd.png"}, result.stderr


WITHOUT_PANDAS = """
import sys
for name in list(sys.modules):
    if name.startswith(("pandas", "monai_spct.report")):
        del sys.modules[name]
from monai_spct.cli import app
app(["report", "runs"])
"""


def test_without_pandas_it_is_said_what_to_install(tmp_path):
    (tmp_path / "pandas.py").write_text("raise ImportError('not here')")
    done = forked(["-c", WITHOUT_PANDAS], tmp_path)
    assert done.returncode == 2
    assert "reports need pandas: pip install 'monai-spct[experiments]'" in done.stderr
    assert "Traceback" not in done.stderr
