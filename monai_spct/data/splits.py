"""Splits of cases by patient."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import Any

from monai.utils import ensure_tuple

from monai_spct.data.copies import copies
from monai_spct.functional.checks import at_least

__all__ = ["Split", "split_cases", "split_with_unlabeled"]

Case = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """Four disjoint lists of cases; no patient is on two sides of training, validation and test.

    ``print(split)`` counts patients and cases; ``describe()`` also names the patients.

    Args:
        labeled: training cases with their ``label``.
        unlabeled: training cases without their ``label``, so that it cannot leak.
        validation: cases to choose settings on, with their ``label``.
        test: cases to report on, with their ``label``.
        key: the entry of a case that names its patient.
        datalist: the file that the lists come from, if any.

    Example:
        >>> print(Split([{"patient": "a"}, {"patient": "a"}], [{"patient": "b"}], [], []))
        labeled: 1 patient, 2 cases
        unlabeled: 1 patient, 1 case
        validation: 0 patients, 0 cases
        test: 0 patients, 0 cases
    """

    labeled: list[Case]
    unlabeled: list[Case]
    validation: list[Case]
    test: list[Case]
    key: str = "patient"
    datalist: str | None = None

    @property
    def labeled_share(self) -> float:
        """Labeled patients as a share of the training patients, 0 to 1; 0 if there are none."""
        labeled, unlabeled = ({case[self.key] for case in cases} for cases in (self.labeled, self.unlabeled))
        return len(labeled) / max(1, len(labeled | unlabeled))

    def describe(self) -> str:
        """Patients and cases of each list, counted, and the patients' names."""
        return "\n".join(self._line(name, named=True) for name in _LISTS)

    def require(self, name: str) -> list[Case]:
        """One of the lists, which must not be empty.

        Args:
            name: ``labeled``, ``unlabeled``, ``validation`` or ``test``.

        Raises:
            ValueError: if there is no such list, or it is empty.
        """
        if name not in _LISTS:
            raise ValueError(f"`name` must be one of {', '.join(_LISTS)}, got {name!r}.")
        cases: list[Case] = getattr(self, name)
        if not cases:
            decides = _LISTS[name] if self.datalist is None else f"the list `{name}` of {self.datalist}"
            raise ValueError(f"there must be at least one {name} patient, got 0: {decides} decides.")
        return cases

    def with_unlabeled(self, cases: Sequence[Mapping[str, Any]]) -> Split:
        """Add unlabeled cases, except those whose patient or image is in validation or test.

        Args:
            cases: entries with the patient and ``image``; a ``label`` is taken out.
        """
        held_out = [*self.validation, *self.test]
        patients = {case[self.key] for case in held_out}
        files = {str(file) for case in held_out for file in ensure_tuple(case["image"])}
        more = [_without_label(case) for case in cases if case[self.key] not in patients]
        everywhere = files | {str(file) for case in more for file in ensure_tuple(case["image"])}
        copied = {file for group in copies(sorted(everywhere)) if not files.isdisjoint(group) for file in group}
        more = [case for case in more if copied.isdisjoint(map(str, ensure_tuple(case["image"])))]
        return replace(self, unlabeled=[*self.unlabeled, *more])

    def __str__(self) -> str:
        return "\n".join(self._line(name, named=False) for name in _LISTS)

    def _line(self, name: str, *, named: bool) -> str:
        cases: list[Case] = getattr(self, name)
        patients = sorted({case[self.key] for case in cases})
        line = f"{name}: {_count(len(patients), 'patient')}, {_count(len(cases), 'case')}"
        return f"{line}: {' '.join(map(str, patients))}" if named and patients else line


_LISTS = {  # and the settings that may leave one empty
    "labeled": "`labeled_ratio` or `labeled_patients`",
    "unlabeled": "`labeled_ratio` or `labeled_patients`",
    "validation": "`num_validation`",
    "test": "`test_ratio` or `num_test`",
}


def split_cases(
    cases: Sequence[Mapping[str, Any]],
    *,
    labeled_ratio: float = 0.1,
    labeled_patients: int | None = None,
    test_ratio: float = 0.25,
    num_test: int | None = None,
    num_validation: int = 0,
    seed: int = 0,
    order: Sequence[Any] | None = None,
    key: str = "patient",
) -> Split:
    """Split cases by patient.

    The sorted patients are shuffled by ``seed``. The first ones are for testing, the next for validation, all others
    for training; of these the first are labeled. So with one seed the 5 % labeled are among the 10 % labeled, and the
    test patients do not depend on the other settings. Neither the order of ``cases`` nor global random state matters.

    Patients who share an image, as ACDC's 074 and 076 do, stay on one side: they stand where the shuffle puts the last
    of them, and whoever came before it takes the place that is left.

    Ratios are rounded down, as in the paper: 10 % of ACDC's 75 training patients are 7, 5 % are 3.

    Args:
        cases: entries with ``key`` and ``image``, and ``label`` unless they end up unlabeled. They are not changed.
        labeled_ratio: labeled share of the training patients, in (0, 1], at least one patient.
        labeled_patients: number of labeled patients, instead of ``labeled_ratio``.
        test_ratio: share of all patients to test on, in [0, 1).
        num_test: number of patients to test on, instead of ``test_ratio``.
        num_validation: number of patients for validation, neither tested nor trained on.
        seed: of the shuffle.
        order: all patients, as a published split has them, instead of the shuffle: those for testing first, then those
            for validation, the labeled ones, and the rest.
        key: the entry that names a case's patient.

    Returns:
        The four lists, each sorted by patient and image.

    Raises:
        ValueError: if a number is out of its range or leaves no patient for training, an image is listed twice, a case
            lacks an entry that it needs, or ``order`` names other patients.

    Example:
        >>> cases = [{"patient": p, "image": f"{p}{t}.nii", "label": f"{p}{t}_gt.nii"} for p in "abcdef" for t in "01"]
        >>> split = split_cases(cases, labeled_patients=1, seed=1)
        >>> print(split.describe())
        labeled: 1 patient, 2 cases: d
        unlabeled: 4 patients, 8 cases: b c e f
        validation: 0 patients, 0 cases
        test: 1 patient, 2 cases: a
        >>> split.unlabeled[0]
        {'patient': 'b', 'image': 'b0.nii'}
    """
    ordered = _ordered(cases, key)
    patients = sorted({case[key] for case in ordered})
    if order is None:
        patients = _shuffled(patients, seed)
    elif sorted(order) == patients:
        patients = list(order)
    else:
        differing = sorted(set(order) ^ set(patients)) or [patient for patient in order if order.count(patient) > 1]
        raise ValueError(f"`order` must name each patient of the cases once: look at {', '.join(map(str, differing))}.")
    if num_test is None:
        num_test = _share("test_ratio", test_ratio, len(patients), least=0)
    num_test, num_validation = at_least("num_test", num_test, 0), at_least("num_validation", num_validation, 0)
    if num_test + num_validation >= len(patients):
        raise ValueError(
            f"`num_test` (or `test_ratio`) and `num_validation` must leave a patient to train on, got {num_test} and "
            f"{num_validation} of {len(patients)} patients."
        )
    groups = _grouped(patients, ordered, key)
    test, validation = _take(groups, num_test), _take(groups, num_validation)
    training = [patient for group in groups for patient in group]
    if labeled_patients is None:
        labeled_patients = _share("labeled_ratio", labeled_ratio, len(training), least=1)
    labeled_patients = at_least("labeled_patients", labeled_patients, 1)
    if labeled_patients > len(training):
        raise ValueError(
            f"`labeled_patients` must be at most the {len(training)} training patients, got {labeled_patients!r}."
        )

    def of(chosen: Sequence[Any]) -> list[Case]:
        members = set(chosen)
        return [dict(case) for case in ordered if case[key] in members]

    split = Split(
        labeled=of(training[:labeled_patients]),
        unlabeled=[_without_label(case) for case in of(training[labeled_patients:])],
        validation=of(validation),
        test=of(test),
        key=key,
    )
    unnamed = [
        f"{case['image']} ({name})"
        for name in ("labeled", "validation", "test")
        for case in getattr(split, name)
        if case.get("label") is None
    ]
    if unnamed:
        raise ValueError(
            f"labeled, validation and test cases need a `label`, missing for: {', '.join(unnamed)}. Split the cases "
            "that have one, and add the others by `with_unlabeled`."
        )
    return split


def split_with_unlabeled(cases: Sequence[Mapping[str, Any]], **settings: Any) -> Split:
    """Split the cases that have a label, and add the others as unlabeled ones.

    Unlabeled cases whose patient or image is in validation or test are left out. Without any label, all are unlabeled.

    Args:
        cases: with ``patient`` and ``image``, and ``label`` where there is one.
        settings: of :func:`split_cases`.

    Example:
        >>> cases = [{"patient": "a", "image": "a.nii", "label": "a_gt.nii"}, {"patient": "b", "image": "b.nii"}]
        >>> print(split_with_unlabeled(cases, labeled_ratio=1.0))
        labeled: 1 patient, 1 case
        unlabeled: 1 patient, 1 case
        validation: 0 patients, 0 cases
        test: 0 patients, 0 cases
    """
    with_label, without = ([case for case in cases if ("label" in case) is there] for there in (True, False))
    split = split_cases(with_label, **settings) if with_label else Split([], [], [], [])
    return split.with_unlabeled(without)


def _without_label(case: Mapping[str, Any]) -> Case:
    return {name: value for name, value in case.items() if name != "label"}


def _ordered(cases: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The cases, sorted, after a look at what all of them need."""
    if not cases:
        raise ValueError("`cases` must not be empty, got no case.")
    for case in cases:
        for name in (key, "image"):
            if case.get(name) is None:
                raise ValueError(f"every case needs `{name}`, got {dict(case)!r}.")
    ordered = sorted(cases, key=lambda case: (case[key], str(case["image"])))
    images = [str(case["image"]) for case in ordered]
    if twice := [image for image, count in Counter(images).items() if count > 1]:
        raise ValueError(f"`cases` must list each image once, got twice: {', '.join(twice)}.")
    return ordered


def _shuffled(patients: list[Any], seed: int) -> list[Any]:
    at_least("seed", seed, 0)
    # Python promises the numbers of `random()` for all versions, but not what `shuffle` makes of them
    generator = random.Random(seed)
    drawn = {patient: generator.random() for patient in patients}
    return sorted(patients, key=drawn.__getitem__)


def _grouped(patients: Sequence[Any], cases: Sequence[Mapping[str, Any]], key: str) -> list[list[Any]]:
    """The patients in their order, those who share an image in one group."""
    groups = [[patient] for patient in patients]
    owners = {str(file): case[key] for case in cases for file in ensure_tuple(case["image"])}
    for files in copies(owners):
        same = {owners[file] for file in files}
        while len(places := [place for place, group in enumerate(groups) if not same.isdisjoint(group)]) > 1:
            first, second, *_ = places
            groups[second] = groups[first] + groups[second]
            neighbor = groups.pop(second - 1)
            if second - 1 > first:
                groups[first] = neighbor
    return groups


def _take(groups: list[list[Any]], number: int) -> list[Any]:
    """The first patients, taken out of their groups; a group that does not fit in whole is passed over."""
    taken: list[Any] = []
    for group in list(groups):
        if len(taken) + len(group) <= number:
            taken += group
            groups.remove(group)
    return taken


def _share(name: str, ratio: float, total: int, *, least: int) -> int:
    """``ratio * total`` rounded down, but at least ``least``."""
    if not isinstance(ratio, Real):
        raise ValueError(f"`{name}` must be a number, got {ratio!r}.")
    if least == 0:
        if not 0 <= ratio < 1:  # also refuses nan
            raise ValueError(f"`{name}` must be at least 0 and below 1, got {ratio!r}.")
    elif not 0 < ratio <= 1:
        raise ValueError(f"`{name}` must be above 0 and at most 1, got {ratio!r}.")
    # 0.29 of 100 is 29, but 0.29 * 100 is below it
    return max(least, int(Fraction(str(float(ratio))) * total))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
