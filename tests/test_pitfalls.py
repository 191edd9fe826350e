"""Each fault that is known to bite people who do this job has a test named after it, so that none gets lost."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

FAULTS = range(1, 33)


def names_of_tests(text: str) -> list[str]:
    """Functions and methods that pytest collects."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def faults_in(text: str) -> Counter[int]:
    """How many tests are named after each fault."""
    return Counter(int(match[1]) for name in names_of_tests(text) if (match := re.match(r"test_p(\d\d)_", name)))


@pytest.fixture(scope="module")
def tested() -> Counter[int]:
    files = Path(__file__).parent.rglob("test_*.py")
    return sum((faults_in(path.read_text(encoding="utf-8")) for path in files), Counter())


@pytest.mark.parametrize("fault", FAULTS, ids="P{}".format)
def test_a_fault_has_a_test_of_its_name(tested, fault):
    assert tested[fault]


def test_no_test_is_named_after_a_fault_that_there_is_not(tested):
    assert set(tested) <= set(FAULTS)


def test_functions_and_methods_count_and_words_in_a_text_do_not():
    text = """
def test_p01_a(): "test_p02_b"
class TestC:
    def test_p03_c(self): ...
def helper_test_p04_d(): ...  # test_p05_e
"""
    assert faults_in(text) == {1: 1, 3: 1}
