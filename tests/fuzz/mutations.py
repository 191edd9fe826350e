"""Ways to damage bytes, lines and JSON."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

BYTES = (0x00, 0x01, 0x20, 0x0A, 0x2E, 0x2F, 0x7F, 0x80, 0xFF)
NUMBERS = (
    *("0", "-1", "1", "2", "65536", "2147483647", "2147483648", "-2147483648", "4294967296", "9" * 20, "9" * 5000),
    *("1e30", "-1e30", "1e-300", "1e999", "nan", "inf", "-inf", "0.5", "1,5", "", "three", "0x10"),
)
WORDS = ("", " ", "True", "False", "true", "None", "../case.raw", "/etc/hostname", "case.%d.raw", "case.raw", "LIST",
         "LOCAL", "local", "LIST 2D", ".", "..", "case.mhd", "~/case.raw", "a\0b", "\xff\xfe", "x" * 300,
         "case.raw extra", "=", ":")  # fmt: skip


def damage(rng: random.Random, content: bytes, *, most: int = 4) -> bytes:
    """Some bytes turned, cut, doubled, inserted, blanked or swapped."""
    data = bytearray(content)
    for _ in range(rng.randint(1, most)):
        if not data:
            return bytes(rng.choice(BYTES) for _ in range(rng.randint(0, 9)))
        start = rng.randrange(len(data))
        end = min(len(data), start + rng.choice((1, 2, 4, 8, 64, 1024)))
        match rng.randrange(8):
            case 0 | 1:
                data[start] ^= 1 << rng.randrange(8)
            case 2:
                data[start] = rng.choice(BYTES)
            case 3:
                del data[start:end]
            case 4:
                data[start:start] = data[start:end]
            case 5:
                data[start:start] = rng.randbytes(end - start)
            case 6:
                data[start:end] = bytes([rng.choice(BYTES)]) * (end - start)
            case 7:
                del data[start:]
    return bytes(data)


def damage_lines(rng: random.Random, text: str, *, separator: str = " = ") -> str:
    """Lines ``name = value`` removed, doubled, moved, renamed, or with another value."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        if not lines:
            return ""
        place = rng.randrange(len(lines))
        name, _, value = lines[place].partition(separator)
        match rng.randrange(9):
            case 0:
                del lines[place]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[place])
            case 2:
                lines.insert(rng.randrange(len(lines) + 1), lines.pop(place))
            case 3:
                lines[place] = (
                    f"{rng.choice((name.lower(), name.upper(), name + ' x', '', name[:-1]))}{separator}{value}"
                )
            case 4:
                lines[place] = lines[place].replace(separator, rng.choice(("=", ":", " ", "\t=\t", "==")))
            case 5:
                words = value.split(" ")
                words[rng.randrange(len(words))] = rng.choice(NUMBERS)
                lines[place] = f"{name}{separator}{' '.join(words)}"
            case 6:
                words = value.split(" ")
                words = rng.choice((words[:-1], [*words, words[-1]], words[::-1], words * 3))
                lines[place] = f"{name}{separator}{' '.join(words)}"
            case 7:
                lines[place] = f"{name}{separator}{rng.choice(WORDS)}"
            case 8:
                lines.insert(place, f"{name}{separator}{rng.choice((*NUMBERS, *WORDS))}")
    return rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n")).join(lines) + rng.choice(("\n", "\n", ""))


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 10**30, 0.5, float("nan"), float("inf"), [], {}, [[]], [None], {"image": "a.nii"}),
    *("", " ", ".", "..", "a.nii", "../a.nii", "x/../a.nii", "x/../../a.nii", "/etc/hostname", "~/a.nii"),
    *("~nobody_/a.nii", "a\0.nii", "\ud800", "x" * 300, "x/" * 3000, "..\\a.nii", "C:\\a.nii"),
    *(["a.nii", "a_gt.nii"], ["a.nii", "a.nii"]),
)


def damage_json(rng: random.Random, content: Any) -> bytes:
    """Values of other types, keys removed, renamed and doubled, values nested; or the text damaged."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.randint(0, 3)):
        places = list(_places(content))
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0 | 1:
                holder[key] = deepcopy(rng.choice(VALUES))  # which later changes leave as they are
            case 2:
                del holder[key]
            case 3:
                holder[key] = [holder[key]]
            case 4:
                holder[key] = {"image": holder[key]}
            case 5 if isinstance(holder, dict):
                holder[rng.choice(("", "label", "image", "Image", "case", "patient", "training", "test", "x"))] = (
                    deepcopy(holder[key])
                )
            case _:
                holder.append(deepcopy(holder[key]))
    text = json.dumps(content, indent=rng.choice((None, 1)))
    match rng.randrange(8):
        case 0:
            return damage(rng, text.encode())
        case 1:
            name = rng.choice(text.split('"')[1::2] or ["x"])
            return text.replace(f'"{name}":', f'"{name}": 1, "{name}":', 1).encode()
        case 2:
            depth = rng.choice((10, 1_000, 100_000))
            return text.replace('"a.nii"', "[" * depth + rng.choice(("]" * depth, "")), 1).encode()
        case 3:
            return text.replace('"a.nii"', rng.choice((*NUMBERS, "NaN", "Infinity")), 1).encode()
        case 4:
            return text.encode(rng.choice(("utf-8-sig", "utf-16", "utf-32", "latin-1")))
        case _:
            return text.encode()


def _places(value: Any) -> Any:
    """Every place in nested lists and dictionaries."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
