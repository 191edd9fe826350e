"""Datalists from the command line: ``python -m monai_spct.data datalist``."""

from __future__ import annotations

import difflib
import inspect
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from monai_spct.data import Split, folder_cases, split_cases, write_datalist

__all__ = ["datalist"]

_CONFIG = "bundles/acdc/configs/train.json"


def datalist(
    folder: str,
    *more: object,
    to: str,
    labeled_ratio: float = 1.0,
    labeled_patients: int | None = None,
    test_ratio: float = 0.25,
    num_test: int | None = None,
    num_validation: int = 0,
    seed: int = 0,
    label: str | None = None,
    channels: Any = (),
    patient: str | None = None,
    **unknown: object,
) -> None:
    """Write a datalist of the images and labels in a folder, split by patient.

    Images without a label are for training without one, unless their patient is tested or validated on.

    Args:
        folder: where the images and labels are.
        more: is refused.
        to: the new file, in JSON.
        labeled_ratio: share of the training patients with labels that keep them; the labels of all by default.
        labeled_patients: number of such patients, instead of `labeled_ratio`.
        test_ratio: share of the patients with labels to test on.
        num_test: number of such patients, instead of `test_ratio`.
        num_validation: number of patients with labels for validation.
        seed: of the shuffle of patients.
        label: the end of a label's name, such as _roi; by default _gt, _seg, _segmentation, _label or _mask.
        channels: ends of the names of an image's files, such as _t1,_flair.
        patient: a regular expression that finds the patient in the path of an image, such as [a-z]+[0-9]+.
        unknown: is refused.
    """
    try:
        _refuse_unknown(more, unknown)
        path = Path(str(to)).expanduser()
        ends = channels.split(",") if isinstance(channels, str) else [str(end) for end in channels]
        cases = folder_cases(
            str(folder), label=None if label is None else str(label), channels=ends, patient=_text(patient)
        )
        with_label = [case for case in cases if "label" in case]
        if not with_label:
            raise ValueError(f"none of the {len(cases)} images in {folder} has a label; `--label` says how labels end.")
        split = split_cases(
            with_label,
            labeled_ratio=labeled_ratio,
            labeled_patients=labeled_patients,
            test_ratio=test_ratio,
            num_test=num_test,
            num_validation=num_validation,
            seed=seed,
        )
        held_out = {case["patient"] for case in (*split.validation, *split.test)}
        without = [case for case in cases if "label" not in case]
        split = replace(
            split, unlabeled=[*split.unlabeled, *(case for case in without if case["patient"] not in held_out)]
        )
        write_datalist(split, path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(_said(split, cases, path, sum(case["patient"] in held_out for case in without)))


def _said(split: Split, cases: list[dict[str, Any]], path: Path, left_out: int) -> str:
    lines = [str(split)]
    if all(case["patient"] == case["case"] for case in cases):
        lines.append("each image counts as a patient of its own; `--patient` says otherwise")
    if left_out:
        lines.append(f"left out: unlabeled images of patients for validation or test, {left_out}")
    if not split.unlabeled:
        lines.append("nothing is unlabeled: without unlabeled images this is plain supervised training")
    channels = 1 if isinstance(cases[0]["image"], str) else len(cases[0]["image"])
    command = f"python -m monai.bundle run training --config_file {_CONFIG} --datalist {shlex.quote(str(path))}"
    lines += ["", f"{command} --in_channels {channels}" if channels > 1 else command]
    return "\n".join(lines) + "\n"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _refuse_unknown(more: tuple[object, ...], unknown: dict[str, object]) -> None:
    """For ``fire``, which runs a function first and finds out then that it was given too much."""
    if more:
        raise ValueError(f"one folder at a time: what is {' '.join(map(repr, more))}?")
    known = [f"--{name}" for name, p in inspect.signature(datalist).parameters.items() if p.kind is p.KEYWORD_ONLY]
    problems = []
    for name in unknown:
        near = difflib.get_close_matches(f"--{name}", known, n=1, cutoff=0.5)
        problems.append(f"there is no option `--{name}`." + (f" Did you mean `{near[0]}`?" if near else ""))
    if problems:
        raise ValueError(" ".join(problems))


if __name__ == "__main__":
    import fire

    fire.Fire({"datalist": datalist})
