"""Figures show what they are given, all of it on one scale, and say what is missing."""

import math
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex

from monai_spct.report.figures import alpha_jsd_figure, alpha_jsd_surface, comparison_figure, entropy_figure
from monai_spct.report.slices import PredictedSlice

CARDIAC = {1: "RV", 2: "Myo", 3: "LV"}
COLORS = {1: "#56b4e9", 2: "#e69f00", 3: "#cc79a7"}
WHITE = "#ffffff"


def plane(*, shift=0, classes=(1, 2, 3), seed=0, case="patient001_frame01", number=5, structures=CARDIAC, size=80):
    """A slice whose prediction is the truth of some classes, shifted."""
    truth = np.zeros((size, size), np.int64)
    for index in structures:
        truth[20 + 10 * index : 28 + 10 * index, 40:50] = index
    pred = np.where(np.isin(truth, classes), truth, 0)
    rng = np.random.default_rng(seed)
    image, entropy = rng.random(truth.shape), rng.uniform(0, math.log(4), truth.shape)
    return PredictedSlice(image, truth, np.roll(pred, shift, 1), entropy, (1.0, 1.0), structures, case, number)


def lines(axes):
    return {to_hex(contour.get_edgecolor()[0]) for contour in axes.collections}


def words(axes):
    return [text.get_text() for text in axes.texts]


def limits(axes):
    return (*axes.get_xlim(), *axes.get_ylim())


def key(figure):
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def overlap(figure):
    """Whether one of the figure's axes, with all that belongs to it, leaves the figure or covers another one."""
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    crossing = any(one.overlaps(two) for n, one in enumerate(boxes) for two in boxes[:n])
    inside = [*boxes, *(legend.get_window_extent() for legend in figure.legends)]
    width, height = figure.canvas.get_width_height()
    return crossing or any(box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height for box in inside)


# Divergences


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_surfaces_are_symmetric_and_reach_ln_2(alpha):
    p, values = alpha_jsd_surface(alpha, size=21)
    assert values.shape == (21, 21)
    np.testing.assert_allclose(values, values.T, atol=1e-12)
    np.testing.assert_allclose(values, values[::-1, ::-1], atol=1e-12)
    assert values.max() == pytest.approx(math.log(2))
    assert values[0, -1] == pytest.approx(math.log(2))
    assert (np.diag(values).max() < 1e-12) == (alpha == 0), "without the entropy term, agreement costs nothing"
    one, two = p[4], p[13]

    def h(q):
        return -q * math.log(q) - (1 - q) * math.log(1 - q)

    assert values[4, 13] == pytest.approx(h((one + two) / 2) - (1 - alpha) * (h(one) + h(two)) / 2)


@pytest.mark.parametrize("alphas", [(0.0,), (0.0, 0.5, 1.0)], ids=len)
def test_all_surfaces_are_on_one_scale(alphas):
    figure = alpha_jsd_figure(alphas)
    *panels, bar = figure.axes
    assert [axes.get_title() for axes in panels] == [rf"$\alpha$ = {alpha}" for alpha in alphas]
    assert bar.get_ylabel() == "JSD (nats)"
    for axes in panels:
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_zlabel()) == ("$P_1$", "$P_2$", "JSD")
        assert axes.get_zlim() == pytest.approx((0, math.log(2)))
        [surface] = axes.collections
        assert (surface.norm.vmin, surface.norm.vmax) == (0, pytest.approx(math.log(2)))
    assert not overlap(figure)


# Predictions side by side


def test_truth_and_predictions_stand_side_by_side():
    columns = {
        "Mean Teacher": [plane(shift=2), plane(number=6, classes=(1,))],
        "DAN": [plane(shift=-3), plane(number=6, classes=(2, 3), shift=1)],
    }
    figure = comparison_figure(columns)
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:3]] == ["Ground truth", "Mean Teacher", "DAN"]
    labels = [" ".join(words(figure.axes[n])).replace("_\n", "_") for n in (0, 3)]
    assert labels == ["patient001_frame01\nslice 5", "patient001_frame01\nslice 6"]
    three = set(COLORS.values())
    first, second = (
        [three, {WHITE, *three}, {WHITE, *three}],
        [three, {WHITE, COLORS[1]}, {WHITE, COLORS[2], COLORS[3]}],
    )
    assert [lines(axes) for axes in figure.axes] == [*first, *second]
    for axes, name, shift in zip(figure.axes[1:3], columns, (2, -3), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), columns[name][0].image.T)
        predicted, true = (axes.collections[n].get_paths()[0].vertices.min(0) for n in (0, 3))  # of RV
        assert predicted - true == pytest.approx((0, shift))
    assert key(figure) == ["RV", "Myo", "LV", "truth"]
    assert not overlap(figure)


def test_a_row_shows_one_part_of_the_plane_around_all_predictions():
    far = plane(shift=20)
    figure = comparison_figure({"one": [plane(), plane(number=6)], "two": [far, plane(number=6)]})
    first, second = [limits(axes) for axes in figure.axes[:3]], [limits(axes) for axes in figure.axes[3:]]
    assert first == [(14.5, 72.5, 79.5, 24.5)] * 3  # 15 mm around, as far as the image goes
    assert second == [(14.5, 72.5, 64.5, 24.5)] * 3
    figure.canvas.draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert [box.width / box.height for box in boxes] == pytest.approx([58 / 55] * 3 + [58 / 40] * 3, rel=0.02)


def test_what_was_not_run_is_an_empty_panel():
    figure = comparison_figure({"one": [None, plane(number=6)], "two": [plane(), None], "three": [None, None]})
    empty = [n for n, axes in enumerate(figure.axes) if "not run" in words(axes)]
    assert empty == [1, 3, 6, 7]
    assert all(not figure.axes[n].images and not figure.axes[n].collections for n in empty)
    assert lines(figure.axes[0]) == lines(figure.axes[4]) == set(COLORS.values())  # the truth is known all the same
    assert not overlap(figure)


def test_datasets_share_a_figure_and_its_colors():
    spleen = plane(structures={1: "spleen", 2: "LV"}, classes=(1, 2), case="spleen_10")
    figure = comparison_figure({"one": [plane(), spleen]})
    assert key(figure) == ["RV", "Myo", "LV", "spleen", "truth"]
    handles = dict(zip(key(figure), figure.legends[0].legend_handles, strict=True))
    assert lines(figure.axes[2]) == {to_hex(handles[name].get_color()) for name in ("spleen", "LV")}


def test_ten_systems_with_long_names_fit():
    names = [f"self_paced_self_consistent {n}" for n in range(8)] + ["Entropy minimization"]
    figure = comparison_figure({name: [plane(), None] for name in names})
    assert len(figure.axes) == 20
    figure.canvas.draw()
    titles = [axes.title.get_window_extent() for axes in figure.axes[:10]]
    assert not any(one.overlaps(two) for one, two in pairwise(titles))
    assert not overlap(figure)


@pytest.mark.parametrize("draw", [comparison_figure, lambda rows: entropy_figure(rows, [])], ids=["slices", "maps"])
def test_systems_must_show_the_same(draw):
    for another in (plane(number=6), plane(case="patient002_frame01"), plane(size=90)):
        with pytest.raises(ValueError, match="must show one slice on one grid"):
            draw({"one": [plane()], "two": [another]})
    for nothing in ({"one": [None]}, {}):
        with pytest.raises(ValueError, match="no slice to show"):
            draw(nothing)


# Entropies


def test_entropies_are_on_one_scale_beside_where_they_lead():
    rows = {
        "alpha 0": [plane(seed=1), plane(seed=2), plane(seed=3, shift=4)],
        "alpha 1e-4": [plane(seed=4), plane(seed=5), plane(seed=6, classes=(2,))],
    }
    figure = entropy_figure(rows, [20, 40])
    *panels, bar = figure.axes
    titles = ["epoch 20", "epoch 40", "Prediction", "Ground truth"]
    assert [axes.get_title() for axes in panels] == [*titles, "", "", "", ""]
    assert [words(panels[n]) for n in (0, 4)] == [["alpha 0"], ["alpha 1e-4"]]
    for number, slices in enumerate(rows.values()):
        *maps, predicted, truth = panels[4 * number : 4 * number + 4]
        for axes, shown in zip(maps, slices, strict=False):
            [image] = axes.images
            np.testing.assert_array_equal(image.get_array(), shown.entropy.T)
            assert image.get_clim() == (0, pytest.approx(math.log(4)))
            assert not axes.collections
        np.testing.assert_array_equal(predicted.images[0].get_array(), slices[-1].image.T)
        assert lines(predicted) == {WHITE, *({COLORS[2]} if number else COLORS.values())}
        assert lines(truth) == set(COLORS.values())
    assert len({limits(axes) for axes in panels}) == 1
    assert bar.get_xlabel() == "entropy (nats), up to ln 4"
    assert bar.get_xlim() == (0, pytest.approx(math.log(4)))
    assert [text.get_text() for text in bar.get_xticklabels()] == ["0.00", "0.35", "0.69", "1.04", "1.39"]
    assert figure.legends[0].get_title().get_text() == "patient001_frame01, slice 5"
    assert key(figure) == ["RV", "Myo", "LV", "truth"]
    assert not overlap(figure)
