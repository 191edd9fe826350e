"""A look at all cases before a training: headers, voxels, and who is on which side; all that is wrong at once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from nibabel.imageglobals import LoggingOutputSuppressor
from numpy.typing import NDArray
from tqdm import tqdm

from monai_spct.data import metaimage, nifti, rules
from monai_spct.data.copies import copies
from monai_spct.data.splits import Case, Split
from monai_spct.data.volume_reader import VolumeReader

__all__ = ["Finding", "Preflight", "check_split", "refuse_bad_headers"]

_FAR = 10  # times the median of a spacing: centimeters for millimeters, or a field in the wrong place
_Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something that was found.

    Args:
        level: ``error`` where a training would stop or learn something wrong, ``warning`` where it goes on and someone
            should look, ``note`` where the files are odd and read right.
        message: what, which rule and which value.
        files: that it is about.

    Example:
        >>> from monai_spct.data.preflight import Finding
        >>> print(Finding("warning", "the image of a is constant.", ("/data/a.nii",)))
        warning: the image of a is constant. (/data/a.nii)
    """

    level: _Level
    message: str
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        unnamed = [file for file in self.files if file not in self.message]
        return f"{self.level}: {self.message}" + (f" ({', '.join(unnamed)})" if unnamed else "")


@dataclass(frozen=True)
class _Header:
    file: str
    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    data_file: Path
    stored: tuple[float, ...]  # voxel sizes as they stand in the file
    affine_spacing: tuple[float, ...] | None = None  # where they disagree with those

    @property
    def spacing(self) -> NDArray[np.float64]:
        sizes: NDArray[np.float64] = np.linalg.norm(self.affine[:3, :3], axis=0)
        return sizes


@dataclass
class _Seen:
    """A case, and what was read of it."""

    place: str  # the list that it is in
    case: Case
    name: str
    image: list[_Header] = field(default_factory=list)
    label: _Header | None = None
    sound: bool = False
    contents: dict[str, str] = field(default_factory=dict)  # a digest for each file of the image
    values: list[float] | None = None  # of the label

    @property
    def image_files(self) -> tuple[str, ...]:
        return tuple(_files(self.case.get("image")))

    @property
    def label_files(self) -> tuple[str, ...]:
        return tuple(_files(self.case.get("label")))


@dataclass(frozen=True)
class Preflight:
    """What :func:`~monai_spct.data.check_split` found.

    Args:
        findings: errors first, then warnings, then notes.
        summary: patients, cases, slices, shapes and spacings of each list, as a table.
    """

    findings: list[Finding]
    summary: str

    @property
    def errors(self) -> list[Finding]:
        """Findings that a training should not be started with."""
        return [finding for finding in self.findings if finding.level == "error"]


def check_split(
    split: Split,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    voxels: bool = True,
    progress: bool = False,
) -> Preflight:
    """Look at all cases of a split.

    Of headers: files that are missing, unreadable or too short; images that are no volumes of real numbers; another
    number of channels than ``in_channels``; channels, or image and label, on different grids; spacings that cannot be,
    or are far from those of the others. Of voxels: values of labels that are no classes; classes that no labeled case
    has; images that are constant or not finite; files that end early. Of the lists: patients on two sides, and images
    of the same content under two names.

    Args:
        split: the lists of cases.
        num_classes: number of classes, background included; without it, values of labels must be whole numbers.
        in_channels: number of channels of an image; not looked at by default.
        voxels: whether to read all voxels; otherwise headers alone, and whether files are the same.
        progress: whether to show bars.

    Returns:
        What was found. Nothing is raised for what a file may hold.

    Example:
        >>> import tempfile
        >>> from monai_spct.data import acdc_cases, check_split, split_cases, write_acdc_phantom
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cases = acdc_cases(write_acdc_phantom(f"{folder}/acdc", patients=1))
        ...     found = check_split(split_cases(cases, labeled_ratio=1.0, num_test=0), num_classes=3)
        >>> found.errors[0].message
        'the label of patient001_frame01 must hold whole numbers from 0 to 2 (`num_classes` is 3), got [3].'
    """
    seen = [_seen(name, case) for name in rules.SIDE for case in getattr(split, name)]
    sides = rules.one_side((str(one.case.get(split.key, one.name)), one.place) for one in seen)
    findings = [Finding("error", problem) for problem in sides]
    with LoggingOutputSuppressor(), warnings.catch_warnings():  # of the readers, without the name of a file
        warnings.simplefilter("ignore")
        for one in _bar(seen, "headers", progress):
            findings += _read_headers(one, in_channels, labeled=one.place != "unlabeled")
        findings += _spacings(seen)
        if voxels:
            for one in _bar([one for one in seen if one.sound], "voxels", progress):
                findings += _read_voxels(one, num_classes)
            findings += _never_seen(seen, num_classes)
        else:
            _compare_files(seen)
    findings += _duplicates(seen)
    levels = ("error", "warning", "note")
    return Preflight(sorted(findings, key=lambda finding: levels.index(finding.level)), _summary(seen, split.key))


def refuse_bad_headers(cases: Sequence[Mapping[str, Any]], *, in_channels: int | None = None) -> None:
    """Refuse cases whose headers show that they cannot be loaded, all at once and before any is.

    Args:
        cases: with ``image`` and perhaps ``label``.
        in_channels: number of channels of an image; not looked at by default.

    Raises:
        ValueError: naming files and reasons.

    Example:
        >>> from monai_spct.data import refuse_bad_headers
        >>> refuse_bad_headers([{"image": "a.nii"}, {"image": "b.mhd"}])
        Traceback (most recent call last):
        ...
        ValueError: these cases cannot be loaded:
        a.nii does not exist.
        b.mhd does not exist.
    """
    errors = []
    with LoggingOutputSuppressor(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            findings = _read_headers(_seen("", case), in_channels, labeled=False)
            errors += [finding.message for finding in findings if finding.level == "error"]
    if errors:
        raise ValueError("\n".join(["these cases cannot be loaded:", *errors]))


# Headers


def _seen(place: str, case: Mapping[str, Any]) -> _Seen:
    files = _files(case.get("image"))
    return _Seen(place, dict(case), str(case.get("case") or (files[0] if files else "a case without an image")))


def _read_headers(one: _Seen, in_channels: int | None, *, labeled: bool) -> list[Finding]:
    found: list[Finding] = []
    if not one.image_files:
        found.append(Finding("error", f"{one.name} of `{one.place}` must have an `image`."))
    if labeled and not one.label_files:
        found.append(Finding("error", f"{one.name} of `{one.place}` must have a `label`.", one.image_files))
    headers: dict[str, _Header] = {}
    for file in dict.fromkeys((*one.image_files, *one.label_files)):
        try:
            headers[file] = _header(file)
        except FileNotFoundError:
            found.append(Finding("error", f"{file} does not exist.", (file,)))
        except Exception as error:  # whatever a damaged header makes of its reader, it is a fault of the file
            found.append(Finding("error", _named(file, error), (file,)))
    one.image = [headers[file] for file in one.image_files if file in headers]
    one.label = next((headers[file] for file in one.label_files if file in headers), None)

    problems: list[str | None] = []
    if one.image_files:
        problems.append(rules.channel_count(one.name, len(one.image_files), in_channels))
    if one.image:
        problems.append(rules.channel_grids([(header.file, header.shape, header.affine) for header in one.image]))
        if one.label is not None:
            problems.append(rules.shapes(one.name, one.image[0].shape, one.label.shape))
    found += [Finding("error", problem, (*one.image_files, *one.label_files)) for problem in problems if problem]
    one.sound = not found
    if one.image and one.label is not None and one.image[0].shape == one.label.shape:
        problem = rules.affines(one.name, one.image[0].affine, one.label.affine, one.label.shape)
        found += [Finding("warning", problem, (one.image[0].file, one.label.file))] if problem else []
    for header in headers.values():
        if not (np.isfinite(header.stored).all() and min(header.stored) > 0):
            found.append(
                Finding(
                    "warning",
                    f"the voxel sizes of {header.file} must be above 0, got {_mm(header.stored)}; it is read with "
                    f"{_mm(header.spacing)}.",
                    (header.file,),
                )
            )
    return found


def _header(file: str) -> _Header:
    if not metaimage.is_metaimage(file):
        read = nifti.read_header(file)
        affine_spacing = read.affine_spacing if read.disagrees else None
        return _Header(file, read.shape, read.affine, read.data_file, read.pixdim, affine_spacing)
    if problem := metaimage.problem_of(file):
        raise ValueError(problem)
    header = metaimage.read_header(file)
    return _Header(file, header.shape, header.affine, header.data_file, header.spacing)


def _spacings(seen: Sequence[_Seen]) -> list[Finding]:
    headers = [(one.name, one.image[0]) for one in seen if one.image]
    if not headers:
        return []
    found = []
    median = np.median([header.spacing for _, header in headers], axis=0)
    for name, header in headers:
        ratio = header.spacing / np.where(median > 0, median, 1)
        if (ratio > _FAR).any() or (ratio < 1 / _FAR).any():
            found.append(
                Finding(
                    "warning",
                    f"the spacing of {name}, {_mm(header.spacing)}, is more than {_FAR} times off the median of all "
                    f"images, {_mm(median)}.",
                    (header.file,),
                )
            )
    odd = [header for one in seen for header in (*one.image, one.label) if header and header.affine_spacing]
    if odd:
        first = odd[0]
        count = "1 file has" if len(odd) == 1 else f"{len(odd)} files have"
        found.append(
            Finding(
                "note",
                f"{count} other voxel sizes in `pixdim` than in the affine; `pixdim` counts. The first is "
                f"{first.file}: {_mm(first.stored)} and {_mm(first.affine_spacing or ())}.",
                (first.file,),
            )
        )
    return found


# Voxels


def _read_voxels(one: _Seen, num_classes: int | None) -> list[Finding]:
    found: list[Finding] = []
    image = _voxels(one.image_files, found)
    if image is not None:
        channels = image if len(one.image_files) > 1 else image[None]
        one.contents = {file: _digest(channel) for file, channel in zip(one.image_files, channels, strict=True)}
        finite = np.isfinite(image)
        inside = image[finite] if not finite.all() else image
        low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 0.0)
        problems = (rules.not_finite(one.name, int((~finite).sum()), low), rules.constant(one.name, low, high))
        found += [Finding("warning", problem, one.image_files) for problem in problems if problem]
    label = _voxels(one.label_files, found) if one.label_files else None
    if label is not None:
        one.values = np.unique(label).tolist()
        if num_classes is None:
            wrong = [value for value in one.values if not (float(value).is_integer() and value >= 0)]
            problem = f"the label of {one.name} must hold whole numbers from 0 on, got {wrong[:5]}." if wrong else None
        else:
            problem = rules.label_values(one.name, one.values, num_classes)
        found += [Finding("error", problem, one.label_files)] if problem else []
    return found


def _voxels(files: tuple[str, ...], found: list[Finding]) -> NDArray[Any] | None:
    """What a training would read."""
    try:
        reader = VolumeReader()
        voxels = reader.get_data(reader.read(files))[0]
        return voxels if voxels.dtype.kind in "iub" else np.asarray(voxels, dtype=np.float32)  # as `LoadImage` has it
    except Exception as error:  # as of headers
        found.append(Finding("error", _named(", ".join(files), error), files))
        return None


def _never_seen(seen: Sequence[_Seen], num_classes: int | None) -> list[Finding]:
    values = [one.values for one in seen if one.place == "labeled" and one.values is not None]
    if num_classes is None or not values:
        return []
    never = sorted(set(range(num_classes)) - {int(value) for some in values for value in some if np.isfinite(value)})
    if not never:
        return []
    which = f"class {never[0]}" if len(never) == 1 else f"classes {', '.join(map(str, never))}"
    return [Finding("warning", f"no labeled case has {which} (`num_classes` is {num_classes}): it cannot be learned.")]


# Lists


def _duplicates(seen: Sequence[_Seen]) -> list[Finding]:
    same: dict[str, list[tuple[str, str]]] = {}
    for one in seen:
        for file, digest in one.contents.items():
            same.setdefault(digest, []).append((one.place, file))
    found = []
    for places in same.values():
        if len(places) < 2:
            continue
        across = len({rules.SIDE[place] for place, _ in places}) > 1
        where = " and ".join(f"{file} (`{place}`)" for place, file in places)
        rule = "no image may be on two sides" if across else "an image should be there once"
        found.append(
            Finding(
                "error" if across else "warning",
                f"{rule}, got the same content in {where}.",
                tuple(file for _, file in places),
            )
        )
    return found


def _digest(channel: NDArray[Any]) -> str:
    # one type for all: a scan that was stored anew in another one is still the same scan
    values = np.ascontiguousarray(channel, dtype=np.float32)
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()


def _compare_files(seen: Sequence[_Seen]) -> None:
    """Marks files of the same content without a look at their voxels."""
    owners = {file: one for one in seen for file in one.image_files}
    for group in copies(owners):
        for file in group:
            owners[file].contents[file] = group[0]


# Words


def _summary(seen: Sequence[_Seen], key: str) -> str:
    rows = [("", "patients", "cases", "slices", "shape", "spacing (mm)")]
    for name in rules.SIDE:
        cases = [one for one in seen if one.place == name]
        headers = [one.image[0] for one in cases if one.image]
        rows.append(
            (
                name,
                str(len({one.case.get(key, one.name) for one in cases})),
                str(len(cases)),
                str(sum(header.shape[2] for header in headers)),
                _range([header.shape for header in headers]),
                _range([header.spacing for header in headers]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < column < 4 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _range(rows: Sequence[Any]) -> str:
    """Smallest to largest along each axis."""
    if not rows:
        return "-"
    table = np.array(rows)
    pairs = zip((f"{value:.4g}" for value in table.min(0)), (f"{value:.4g}" for value in table.max(0)), strict=True)
    return " x ".join(low if low == high else f"{low}..{high}" for low, high in pairs)


def _mm(spacing: Any) -> str:
    return " x ".join(f"{size:.4g}" for size in spacing) + " mm"


def _named(file: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if file in said else f"{file} cannot be read: {said}"


def _files(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _bar(items: Sequence[Any], what: str, shown: bool) -> Iterator[Any]:
    bar: Iterator[Any] = iter(tqdm(items, desc=what, disable=not shown, leave=False))
    return bar
