"""Datalists: JSON files that assign cases to training, validation and test."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.utils.misc import ensure_tuple

from monai_spct.data import rules
from monai_spct.data.case_names import case_names
from monai_spct.data.copies import copies
from monai_spct.data.hdf5 import file_of
from monai_spct.data.splits import Case, Split, split_cases
from monai_spct.files.atomic import replacing
from monai_spct.files.paths import can_be_called, is_there, leaves_folder
from monai_spct.functional.spelling import did_you_mean

__all__ = ["read_datalist", "read_or_split", "write_datalist"]

_LISTS = tuple(rules.SIDE)
_ENTRIES = ("patient", "case", "image", "label")
_Listed = list[tuple[str, Case]]  # cases, each with the name of its list


def read_datalist(path: str | Path, *, with_labels: bool = True) -> Split:
    """Read a datalist.

    It is a JSON file with up to four lists of cases::

        {"labeled":    [{"image": "images/a.nii.gz", "label": "labels/a.nii.gz", "patient": "p1"}],
         "unlabeled":  [{"image": "images/b.nii.gz"}],
         "validation": [],
         "test":       [{"image": ["images/c_t1.nii.gz", "images/c_t2.nii.gz"], "label": "labels/c.nii.gz"}]}

    Paths are absolute, or relative to the file and inside its folder. ``image`` is a file, or a list of files that are
    the channels of one image. By default, a ``case`` is named after its first file (or its path, where two files have
    one name), and each case is a ``patient`` of its own. A ``label`` under ``unlabeled`` is not read.

    Training, validation and test must not share patients or images, including copies of a file under other names.

    Args:
        path: the file.
        with_labels: whether labels are required; otherwise all are ignored, as for prediction.

    Returns:
        The lists, sorted by patient and case, with absolute paths and with ``patient`` and ``case`` in each entry.

    Raises:
        FileNotFoundError: if the file, or files that it names, do not exist; names all.
        ValueError: if it is not such JSON, or contradicts itself; names all problems of a kind.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.data import read_datalist
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a.nii", "a_gt.nii", "b.nii"):
        ...     (folder / name).touch()
        >>> lists = '{"labeled": [{"image": "a.nii", "label": "a_gt.nii"}], "unlabeled": [{"image": "b.nii"}]}'
        >>> _ = (folder / "my.json").write_text(lists)
        >>> print(read_datalist(folder / "my.json").describe())
        labeled: 1 patient, 1 case: a
        unlabeled: 1 patient, 1 case: b
        validation: 0 patients, 0 cases
        test: 0 patients, 0 cases
    """
    path = Path(path).expanduser().absolute()
    content = _content(path)
    _refuse(
        path,
        [
            problem
            for name, entries in content.items()
            for number, entry in enumerate(entries, start=1)
            for problem in _malformed(f"case {number} of `{name}`", entry, with_labels and name != "unlabeled")
        ],
    )
    cases = [
        (name, _case(entry, path.parent, with_labels and name != "unlabeled"))
        for name in _LISTS
        for entry in content.get(name, [])
    ]
    names = case_names([ensure_tuple(case["image"])[0] for _, case in cases]) if cases else []
    for (_, case), name in zip(cases, names, strict=True):
        case.setdefault("case", name)
        case.setdefault("patient", case["case"])
    patients = rules.one_side((case["patient"], name) for name, case in cases)
    _refuse(path, [*(_twice(cases) or _bad_names(cases)), *patients, *_channels(cases)])
    missing = [
        f"{file} (`{key}` in `{name}`)"
        for name, case in cases
        for key in ("image", "label")
        for file in ensure_tuple(case.get(key, ()))
        if not is_there(file_of(file))
    ]
    if missing:
        raise FileNotFoundError(f"{path} names files that do not exist:\n" + "\n".join(missing))
    _refuse(path, _copied(cases))
    ordered = sorted(cases, key=lambda listed: (listed[1]["patient"], listed[1]["case"]))
    lists = {name: [case for of, case in ordered if of == name] for name in _LISTS}
    return Split(**lists, datalist=str(path))  # type: ignore[arg-type]


def read_or_split(
    cases: Sequence[Mapping[str, Any]] | None = None, *, datalist: str | Path | None = None, **settings: Any
) -> Split:
    """Read a datalist, or split cases by :func:`~monai_spct.data.split_cases`.

    Args:
        cases: what to split.
        datalist: the file to read instead, see :func:`~monai_spct.data.read_datalist`.
        settings: of ``split_cases``; ignored with a datalist.

    Raises:
        ValueError: if both are given, or neither; and what the two functions raise.

    Example:
        >>> from monai_spct.data import read_or_split
        >>> cases = [{"patient": p, "image": f"{p}.nii", "label": f"{p}_gt.nii"} for p in "abcd"]
        >>> print(read_or_split(cases, labeled_patients=1))
        labeled: 1 patient, 1 case
        unlabeled: 2 patients, 2 cases
        validation: 0 patients, 0 cases
        test: 1 patient, 1 case
    """
    if (cases is None) == (datalist is None):
        raise ValueError(f"give either `cases` or `datalist`, got {'neither' if cases is None else 'both'}.")
    return split_cases(cases, **settings) if cases is not None else read_datalist(str(datalist))


def write_datalist(split: Split, path: str | Path) -> None:
    """Write a datalist that :func:`~monai_spct.data.read_datalist` reads.

    Paths below the datalist's folder are relative to it, so that the folder can be moved; others are absolute.

    Args:
        split: cases with ``patient``, ``case``, ``image`` and perhaps ``label``; other entries are left out.
        path: the new file.

    Raises:
        FileExistsError: if it exists.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from monai_spct.data import Split, write_datalist
        >>> path = Path(tempfile.mkdtemp()) / "my.json"
        >>> case = {"patient": "a", "case": "a", "image": str(path.parent / "images" / "a.nii.gz")}
        >>> write_datalist(Split([], [case], [], []), path)
        >>> '"image": "images/a.nii.gz"' in path.read_text()
        True
    """
    path = Path(path).expanduser().absolute()
    if path.exists():
        raise FileExistsError(f"{path} exists: give another name, or move it away.")

    def short(file: str) -> str:
        return Path(file).relative_to(path.parent).as_posix() if path.parent in Path(file).parents else file

    def entry(case: Case) -> Case:
        return {
            key: _each(case[key], short) if key in ("image", "label") else case[key] for key in _ENTRIES if key in case
        }

    lists = {name: [entry(case) for case in getattr(split, name)] for name in _LISTS}
    with replacing(path, "w") as file:
        file.write(json.dumps(lists, indent=2, ensure_ascii=False) + "\n")


def _content(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no datalist {path}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(cases, list) for cases in content.values()):
        raise ValueError(f"{path} must hold an object of lists ({', '.join(_LISTS)}).")
    _refuse(path, [f"there is no list `{name}`.{did_you_mean(name, _LISTS)}" for name in content if name not in _LISTS])
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise ValueError(f"{', '.join(twice)} is there twice")  # json would keep the last one and say nothing
    return dict(pairs)


def _malformed(which: str, entry: Any, with_label: bool) -> list[str]:
    if not isinstance(entry, dict):
        return [f'{which} must be an object such as {{"image": "a.nii.gz"}}, got {entry!r}.']
    problems = [
        f"{which} has an unknown entry `{key}`.{did_you_mean(key, _ENTRIES)}" for key in entry if key not in _ENTRIES
    ]
    image, label = entry.get("image"), entry.get("label")
    files: dict[str, list[Any]] = {"image": image if isinstance(image, list) else [image]} | (
        {"label": [label]} if with_label else {}
    )
    wanted = {
        "image": f"an `image`, a file or a list of files, got {image!r}",
        "label": f"a `label`, a file, got {label!r} beside {image!r}",
    }
    for key, names in files.items():
        if not names or not all(isinstance(name, str) and name for name in names):
            problems.append(f"{which} must have {wanted[key]}.")
            continue
        problems += [
            f"`{key}` of {which} must be below the folder of the list, or have its absolute path, got {name!r}."
            for name in names
            if not Path(_home(name)).is_absolute() and leaves_folder(name)
        ]
    return problems + [
        f"`{key}` of {which} must be a name, got {entry[key]!r}."
        for key in ("patient", "case")
        if key in entry and (type(entry[key]) not in (str, int) or not str(entry[key]).strip())
    ]


def _home(file: str) -> str:
    return os.path.expanduser(file)  # noqa: PTH111 - which leaves a user as it is whom nobody knows


def _case(entry: Mapping[str, Any], root: Path, with_label: bool) -> Case:
    """An entry with absolute paths, and without a label that nobody should read."""
    keys = ("image", "label") if with_label else ("image",)
    case: Case = {key: str(entry[key]).strip() for key in ("patient", "case") if key in entry}
    return case | {key: _each(entry[key], lambda file: os.path.normpath(root / _home(file))) for key in keys}


def _twice(cases: _Listed) -> list[str]:
    places: dict[str, list[str]] = {}
    for name, case in cases:
        for file in ensure_tuple(case["image"]):
            places.setdefault(os.path.realpath(file) if is_there(file) else file, []).append(name)
    return [
        f"{file} is there {len(names)} times, in {' and '.join(f'`{name}`' for name in names)}."
        for file, names in places.items()
        if len(names) > 1
    ]


def _copied(cases: _Listed) -> list[str]:
    lists = {file: name for name, case in cases for file in ensure_tuple(case["image"])}
    return [
        f"an image must be on one side, got copies: {' and '.join(f'{file} (`{lists[file]}`)' for file in same)}."
        for same in copies(lists)
        if len({rules.SIDE[lists[file]] for file in same}) > 1
    ]


def _channels(cases: _Listed) -> list[str]:
    counts = {case["case"]: len(ensure_tuple(case["image"])) for _, case in cases}
    [(usual, _)] = Counter(counts.values()).most_common(1) or [(1, 0)]
    if others := [f"{name} ({count})" for name, count in counts.items() if count != usual]:
        rule = f"all images must have the same number of files, {usual} as most of them"
        return [f"{rule}, got others for {', '.join(others)}."]
    return []


def _bad_names(cases: _Listed) -> list[str]:
    counts = Counter(case["case"] for _, case in cases)
    # predictions and pictures are files of these names
    return [
        *(f"two cases must not have one name, got {name} {n} times." for name, n in counts.items() if n > 1),
        *(f"`case` must be the name of a file, got {name!r}." for name in counts if not can_be_called(name)),
    ]


def _refuse(path: Path, problems: Sequence[str]) -> None:
    if problems:
        raise ValueError("\n".join([f"{path} cannot be used:", *problems]))


def _each(value: Any, function: Callable[[str], str]) -> Any:
    return function(value) if isinstance(value, str) else [function(item) for item in value]
