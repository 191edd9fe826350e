"""The cause of an error is what a process says last."""

import sys

from monai_spct.workflow import put_the_cause_last
from tests.bundles.little import ROOT
from tests.forks import forked

# a component that fails, wrapped by MONAI twice: as a component and as an expression
WRAPPED = """
from monai.bundle import ConfigParser
from monai_spct.workflow import put_the_cause_last
put_the_cause_last()
put_the_cause_last()
def fails():
    try:
        raise RuntimeError("Missing key(s) in state_dict: a, b, c")
    except RuntimeError as error:
        {}["aorta"]
import builtins
builtins.fails = fails
ConfigParser({"part": {"_target_": "builtins.fails"}, "run": "$@part.go()"}).get_parsed_content("run")
"""


def test_an_error_that_monai_wraps_ends_with_its_cause():
    done = forked(["-c", WRAPPED], ROOT)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[-1] == "What went wrong: KeyError: 'aorta'"
    assert lines.count(lines[-1]) == 1
    # the traceback is there all the same
    assert any(line.startswith("RuntimeError: Failed to instantiate component 'builtins.fails'") for line in lines)
    assert "RuntimeError: Missing key(s) in state_dict: a, b, c" in lines


def test_other_errors_end_as_ever_and_a_hook_of_the_program_is_called(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error[1]))
    put_the_cause_last()
    try:
        {}["a"]
    except KeyError as key_error:
        error = ValueError("plain")
        error.__cause__ = key_error
    sys.excepthook(ValueError, error, None)
    assert seen == [error]
    assert capsys.readouterr().err == ""
