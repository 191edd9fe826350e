"""How the documentation is built: ``sphinx-build -W --keep-going -n -b html docs docs/_build/html``."""

import re
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a clone builds its pages without being installed

from docutils import nodes
from numpy.typing import ArrayLike, DTypeLike
from sphinx.util.typing import stringify_annotation
from ziamath import Latex

# what these projects document, as far as pages here name it; a build asks no server
ELSEWHERE = {
    "ignite": "https://docs.pytorch.org/ignite/",
    "monai": "https://docs.monai.io/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
for inventory in ELSEWHERE:
    for line in (HERE / "_inventories" / f"{inventory}.txt").read_text(encoding="utf-8").splitlines()[3:]:
        module, _, name = line.split()[0].rpartition(".")
        documented = getattr(import_module(module), name)
        if isinstance(documented, type) and documented.__module__ != module:
            documented.__module__ = module  # `torch.nn.Module` says that it is of `torch.nn.modules.module`

import monai_spct

project = "monai_spct"
author = "The monai_spct developers"
copyright = author
release = version = monai_spct.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"  # in a new clone, all of a notebook is run
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds, for each of its cells
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]

html_theme = "furo"
html_title = "monai_spct"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "pictures"
copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor what is answered

intersphinx_mapping = {name: (url, f"_inventories/{name}.txt") for name, url in ELSEWHERE.items()}
nitpick_ignore_regex = [
    (r"py:class", r"(matplotlib|nibabel|numpy\.random|pandas)\..*"),
    (r"py:class", r"torch\.nn\.modules\.loss\._Loss|monai\.utils\.enums\.LossReduction"),  # undocumented there
    (r"py:class", r"monai_spct\.networks\.(ensemble|weights)\.Module"),  # a type variable
    (r"py:class", r"dict\[str|.*Mapping\[str"),  # halves of signatures
]


def _shorten(app, what, name, obj, options, signature, returns):
    for name, alias in (("ArrayLike", ArrayLike), ("DTypeLike", DTypeLike)):
        long = stringify_annotation(alias, "smart")
        signature, returns = (text and text.replace(long, f"~numpy.typing.{name}") for text in (signature, returns))
    return signature, returns


def _formula(self, node):
    """Formulas are pictures within the page: no font, script or server is needed to see them."""
    source, inline = node.astext(), isinstance(node, nodes.math)
    drawing = Latex(source, size=17, inline=inline, color="currentColor")
    svg = drawing.svgxml()
    svg.set("role", "img")
    svg.set("aria-label", source)
    svg.set("style", f"vertical-align: {drawing.getyofst():.1f}px")
    text = ElementTree.tostring(svg, encoding="unicode")
    self.body.append(text if inline else f'<div class="math">{text}</div>')
    raise nodes.SkipNode


def _keep_options_whole(app, page, template, context, doctree):
    """Lines break before an option such as ``--seed``, not within it."""
    context["body"] = re.sub(r"(?<=[\s>])--\w[\w#-]*", r'<span class="option">\g<0></span>', context.get("body", ""))


def setup(app):
    app.connect("autodoc-process-signature", _shorten)
    app.connect("html-page-context", _keep_options_whole)
    app.add_html_math_renderer("pictures", (_formula, None), (_formula, None))
