"""How the documentation is built: ``sphinx-build -W --keep-going -n -b html docs docs/_build/html``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a clone builds its pages without being installed

import monai_spct

project = "monai_spct"
author = "The monai_spct developers"
copyright = author
release = version = monai_spct.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]

# names of other projects and of the standard library, which no page here defines
nitpick_ignore_regex = [
    (r"py:.*", r"(collections|ignite|matplotlib|monai|nibabel|np|numpy|os|pandas|pathlib|torch|types|typing)\..*"),
    (r"py:.*", r"(bool|bytes|dict|float|int|list|None|object|set|str|tuple|type)"),
    (r"py:.*", r"(Any|ArrayLike|Callable|DTypeLike|Figure|Iterable|Iterator|Mapping|NDArray|Path|Sequence)"),
    (r"py:.*", r"(Dataset|Engine|Inferer|LossReduction|MapTransform|Metric|Optimizer|Randomizable|Sampler|Tensor)"),
    (r"py:exc", r".*Error"),
    (r"py:class", r"monai_spct\.networks\.(ensemble|weights)\.Module"),  # a type variable
    (r"py:class", r"dict\[str|.*Mapping\[str"),  # halves of signatures
]

html_theme = "furo"
html_title = "monai_spct"
