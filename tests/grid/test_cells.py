import json
import re
import shutil

import pytest
from fire.parser import DefaultParseValue

from monai_spct.data import acdc_cases, split_cases, write_acdc_phantom, write_datalist
from monai_spct.workflow import bundles_folder
from monai_spct.workflow.cells import read_cells
from tests.grid.conftest import write, write_table

ROW = {"dataset": "tiny", "method": "own", "seed": 0}


@pytest.fixture
def cell(tmp_path, tiny, cases):
    """Makes the only cell of a table with one row."""

    def read(data=cases, **keys):
        table = write_table(tmp_path / "table.tsv", {**ROW, **keys})
        (found,) = read_cells(table, bundles=tiny, data={"tiny": str(data)})
        return found

    return read


def test_a_row_is_two_commands_as_one_would_type_them(cell, tiny, cases):
    found = cell(seed=3, pictures=0, ratio="0.25")
    assert found.training[1:] == [
        *("-m", "monai.bundle", "run", "training"),
        "--config_file",
        json.dumps([str(tiny / "tiny/configs/train.json"), str(tiny / "methods/own.json")]),
        f"--dataset_dir={cases}",
        *("--seed=3", "--ratio=0.25", f"--output_dir=runs/{found.name}", "--resume=true"),
    ]
    assert found.evaluating[5:] == [
        *("--config_file", json.dumps([str(tiny / "tiny/configs/evaluate.json")])),
        *(f"--dataset_dir={cases}", "--pictures=0", "--ratio=0.25", f"--output_dir=runs/{found.name}"),
    ]
    assert (found.epochs, found.record["axes"]) == (4, {"seed": 3, "pictures": 0, "ratio": 0.25})
    assert re.fullmatch(r"tiny/own/default/seed=3/pictures=0/ratio=0.25/[0-9a-f]{10}", found.name)


def test_other_settings_and_cases_are_other_folders(cell, cases):
    """Old scores of other patients do not pass for new ones."""
    found = [cell(**other).name for other in ({}, {"seed": 1}, {"max_epochs": 5}, {"pictures": 1}, {"method": ""})]
    write(cases / "p3", "")
    found.append(cell().name)
    (cases / "p1").unlink()
    found.append(cell().name)
    assert len(set(found)) == 7


def test_the_same_in_another_place_is_the_same_folder(cell, cases, tmp_path):
    before = cell().name
    moved = shutil.move(cases, tmp_path / "elsewhere")
    assert cell(data=moved).name == before
    assert cell(data=moved, device="").name == before


def test_an_edited_file_is_another_folder(cell, tiny):
    before, file = cell().name, tiny / "methods" / "own.json"
    text = file.read_text()
    write(file, {"ratio": 0.75})
    assert cell().name != before
    file.write_text(text)
    assert cell().name == before


def test_rows_that_are_alike_are_one_cell(tmp_path, tiny, cases):
    table = write_table(tmp_path / "table.csv.tsv", ROW, ROW, {**ROW, "seed": 1})
    assert len(read_cells(table, bundles=tiny, data={"tiny": str(cases)})) == 2


def test_a_table_may_have_commas(tmp_path, tiny, cases):
    table = write(tmp_path / "table.csv", 'dataset, ratio\ntiny,"0.25"\n')
    (found,) = read_cells(table, bundles=tiny, data={"tiny": str(cases)})
    assert found.record["axes"] == {"ratio": 0.25}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dataset": "tinny"}, "row 1: there is no bundle `tinny`. Did you mean `tiny`?"),
        ({"method": "on"}, "there is no method `on`. Did you mean `own`?"),
        ({"network": "enett"}, "there is no network `enett`. Did you mean `enet`?"),
        ({"overlays": "train"}, "there is no overlay of tiny `train`."),
        ({"max_epoch": 3}, "`max_epoch` is no key of these configs. Did you mean `max_epochs`?"),
        ({"methode": "own"}, "`methode` is no key of these configs. Did you mean `method`?"),
        ({"train#trainr": 3}, "unknown key `train#trainr`"),
        ({"output_dir": "here"}, "`output_dir` is not for a table to set: each cell has its own folder."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_exist_is_refused_with_the_nearest_that_does(cell, keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cell(**keys)


def test_a_mistake_is_told_once_for_all_rows_that_have_it(tmp_path, tiny, cases):
    table = write_table(tmp_path / "t.tsv", *({**ROW, "seed": seed, "method": "on"} for seed in range(2)), ROW)
    with pytest.raises(ValueError, match=r"^t\.tsv, rows 1, 2: there is no method `on`.*$"):
        read_cells(table, bundles=tiny, data={"tiny": str(cases)})


def test_data_must_be_there_and_belong_to_a_dataset(tmp_path, tiny, cases):
    table = write_table(tmp_path / "t.tsv", ROW)
    with pytest.raises(ValueError, match="the data of `tiny` are not at nowhere: say where they are, `tiny=FOLDER`"):
        read_cells(table, bundles=tiny)
    with pytest.raises(ValueError, match=r"`tinny` is no dataset of t.tsv and no option. Did you mean `tiny`\?"):
        read_cells(table, bundles=tiny, data={"tiny": str(cases), "tinny": str(cases)})


@pytest.mark.parametrize("value", ["0.1", "1e-4", "[20, 40]", "true", "True", "a word", "-1", "None"])
def test_values_mean_what_they_mean_on_the_command_line(cell, value):
    assert cell(ratio=value).record["axes"]["ratio"] == DefaultParseValue(value)


def test_the_record_holds_the_datalist_from_which_reports_make_data(tmp_path):
    data = write_acdc_phantom(tmp_path / "data", patients=4, size=(32, 32), spacing=(4.0, 4.0), slices=(4, 4))
    write_datalist(split_cases(acdc_cases(data), labeled_patients=1), tmp_path / "my.json")
    table = write_table(tmp_path / "table.tsv", {"dataset": "acdc", "datalist": tmp_path / "my.json"})
    [found] = read_cells(table)
    for config in found.record["configuration"].values():
        assert config["datalist"] == str(tmp_path / "my.json")


def test_the_tables_of_the_package_can_be_run(tmp_path):
    """All names and keys in them exist."""
    data = write_acdc_phantom(tmp_path / "data", patients=20, size=(32, 32), spacing=(4.0, 4.0), slices=(4, 4))
    sizes = {}
    for table in sorted((bundles_folder() / "experiments").glob("*.tsv")):
        header, *rows = table.read_text().splitlines()
        rows = [row for row in rows if row.startswith("acdc")]  # which there is a phantom of here
        if rows:
            sizes[table.stem] = len(rows)
            # rows that differ in their seed alone have the same names and keys
            place = header.split("\t").index("seed") if "seed" in header.split("\t") else None
            unlike = {tuple(c for n, c in enumerate(row.split("\t")) if n != place): row for row in rows}.values()
            cells = read_cells(write(tmp_path / table.name, "\n".join([header, *unlike])), data={"acdc": str(data)})
            assert len(cells) == len(unlike), table
    assert (sizes["acdc_dsc"], sizes["small"]) == (45, 30)
