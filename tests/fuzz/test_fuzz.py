"""A damaged file is read right or refused by name; ``python -m tests.fuzz`` tries many more of them."""

import contextlib
import importlib.util
import json
import os
import random
import sys
import time

import pytest

from tests.bundles.little import ROOT
from tests.forks import forked
from tests.fuzz import formats

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is limited on Linux alone")

FORMATS = [name for name in formats.FORMATS if name not in ("mhd", "mha", "nrrd") or importlib.util.find_spec("itk")]

if sys.platform == "linux":
    from tests.fuzz import __main__ as fuzz


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of the command, in a process that has no threads of other tests."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    done = forked(["-m", "tests.fuzz", *FORMATS, "--count", "100", "--json", path], ROOT)
    assert path.is_file(), done.stderr
    return json.loads(path.read_text()) | {"said": done.stdout}


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_right_or_refused_by_name(report, name):
    assert not report[name]["fault"], report["said"]
    assert report[name]["read"] > 5  # not all are damaged beyond use
    assert report[name]["refused"] > 5 or name == "info"  # which says nothing that is needed


# The command notices what it looks for


def crash(_path):
    os._exit(3)


def hang(_path):
    while True:
        time.sleep(0.01)


def use_up_memory(_path):
    bytearray(8 << 30)


def say_nothing_of_the_file(_path):
    raise ValueError("expected 4 bytes")


def look_for_a_key(_path):
    {}["dim"]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (crash, "the process ended, or hung"),
        (hang, "it takes too long"),
        (use_up_memory, "MemoryError"),
        (say_nothing_of_the_file, "without the name of the file: ValueError: expected 4 bytes"),
        (look_for_a_key, "KeyError: 'dim'"),
        (lambda _path: formats.must(False, "these are other voxels"), "these are other voxels"),
    ],
    ids=["crash", "hang", "memory", "no name", "no words", "wrong"],
)
def test_whatever_else_comes_of_a_file_is_a_fault(monkeypatch, read, said):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setitem(formats.FORMATS, "info", formats.Format(formats.write_info, read))
    report = fuzz.run(["info"], first=3, count=2)["info"]
    assert sorted(report["fault"]) == [3, 4]
    assert said in report["fault"][3]


@pytest.mark.parametrize("name", FORMATS)
def test_an_input_is_a_function_of_its_number(tmp_path, name):
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        contents.append(formats.FORMATS[name].make(random.Random(f"{name}/0/7"), folder).read_bytes())
    assert contents[0] == contents[1]


def test_the_command_tells_the_number_of_a_fault(monkeypatch, capsys):
    monkeypatch.setitem(formats.FORMATS, "info", formats.Format(formats.write_info, look_for_a_key))
    assert fuzz.main(["info", "--count", "3"]) == 1
    assert "3 faults" in capsys.readouterr().out
    with contextlib.suppress(SystemExit):
        fuzz.main(["nothing"])
    assert "there is no format nothing" in capsys.readouterr().err
