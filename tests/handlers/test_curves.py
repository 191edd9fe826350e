"""Curves show what a history has, all of it in the figure, and a run has them while it lasts."""

import ignite.distributed as idist
import numpy as np
import pytest
from ignite.engine import Engine, Events
from matplotlib.image import imread

from monai_spct.handlers import AddToHistory, SaveCurves, SaveHistory, curves_figure


def key(figure):
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def overlap(figure):
    """Whether one of the figure's axes or its legend leaves the figure or covers another one."""
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    crossing = any(one.overlaps(two) for n, one in enumerate(boxes) for two in boxes[:n])
    width, height = figure.canvas.get_width_height()
    return crossing or any(box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height for box in boxes)


def history(epochs, **functions):
    return [{"epoch": float(n), "seconds": 0.1 * n, **{k: f(n) for k, f in functions.items()}} for n in epochs]


def test_what_changes_has_a_panel_and_each_system_a_line():
    ours = history(range(1, 5), learning_rate=lambda n: 0.1 / n, loss=lambda n: 1 / n, gamma=lambda n: 2.0**n)
    figure = curves_figure({"Ours": [ours], "Labeled only": [history(range(1, 4), loss=lambda n: 2 / n)]})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "gamma", "learning rate"]
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear"]
    loss, _, rate = figure.axes
    drawn = [line.get_xydata() for line in loss.lines if len(line.get_xydata())]
    np.testing.assert_allclose(drawn[0], [[n, 1 / n] for n in range(1, 5)])
    np.testing.assert_allclose(drawn[1], [[n, 2 / n] for n in range(1, 4)])
    assert len(rate.lines) == 1
    assert key(figure) == ["Ours", "Labeled only"]
    shown = [line.get_color() for line in loss.lines if len(line.get_xydata())]
    assert [handle.get_color() for handle in figure.legends[0].legend_handles] == shown
    assert shown[0] != shown[1]
    assert not overlap(figure)


def test_seeds_are_thin_lines_and_their_mean_goes_as_far_as_all_of_them():
    seeds = [history(range(1, 1 + n), loss=lambda e, n=n: n / e) for n in (3, 5)]
    [axes] = curves_figure({"Ours": seeds}).axes
    *thin, mean = [line for line in axes.lines if len(line.get_xydata())]
    for line, n in zip(thin, (3, 5), strict=True):
        np.testing.assert_allclose(line.get_xydata(), [[e, n / e] for e in range(1, 1 + n)])
        assert line.get_linewidth() < mean.get_linewidth()
    np.testing.assert_allclose(mean.get_xydata(), [[e, 4 / e] for e in range(1, 4)])


def test_constants_are_left_out_and_losses_come_first():
    one = history((1, 2), learning_rate=lambda _: 0.1, disagreement=lambda n: n, co_training_loss=lambda n: n)
    figure = curves_figure({"Ours": [one]})
    assert [axes.get_title() for axes in figure.axes] == ["co-training loss", "disagreement"]
    with pytest.raises(ValueError, match="must have a quantity that changes, got none"):
        curves_figure({"Ours": [history((1, 2), learning_rate=lambda _: 0.1)]})


def test_many_quantities_and_systems_fit():
    names = {f"quantity_{n}": lambda e, n=n: n + e for n in range(9)}
    figure = curves_figure({f"system {n}": [history((1, 2, 3), **names)] * 2 for n in range(10)})
    assert len(figure.axes) == 9
    assert figure.axes[4].get_subplotspec().rowspan.start == 1
    assert len({(handle.get_color(), handle.get_linestyle()) for handle in figure.legends[0].legend_handles}) == 10
    assert not overlap(figure)


def test_names_that_do_not_fit_beside_each_other_stand_below_each_other():
    names = [f"self-paced and self-consistent, number {n}" for n in range(10)]
    figure = curves_figure({name: [history((1, 2), loss=float)] for name in names})
    assert len(figure.axes) == 1
    assert key(figure) == names
    assert not overlap(figure)
    assert figure.get_figwidth() == pytest.approx(3.2)
    assert figure.axes[0].get_window_extent().height > 150  # the panel does not give way to them
    assert not overlap(curves_figure({"a system with a name of many words " * 3: [history((1, 2), loss=float)]}))


def test_what_does_not_change_is_shown_where_it_is_asked_for():
    first = history((1,), loss=float, gamma=lambda _: 0.2, co_training_weight=lambda _: 0.0)
    figure = curves_figure({"": [first]}, constants=True)
    assert [axes.get_title() for axes in figure.axes] == ["loss", "gamma", "co-training weight"]
    assert all(axes.lines[0].get_marker() == "." for axes in figure.axes)  # a line of one point cannot be seen
    assert not overlap(figure)


def test_validations_are_points_at_their_epochs_after_the_losses():
    rows = history(range(1, 7), consistency_weight=float, loss=float)
    for row in rows[1::2]:
        row["validation_mean_dsc"] = row["epoch"] / 10
    loss, score, weight = curves_figure({"": [rows]}).axes
    titles = [axes.get_title() for axes in (loss, score, weight)]
    assert titles == ["loss", "validation mean DSC", "consistency weight"]
    np.testing.assert_allclose(score.lines[0].get_xydata(), [[2, 0.2], [4, 0.4], [6, 0.6]])
    assert (score.lines[0].get_marker(), loss.lines[0].get_marker()) == (".", "")
    assert score.get_xlim() == loss.get_xlim()


# the handler


def run(folder, *, epochs, interval) -> list[int]:
    """The epochs after which the picture was a new one."""
    trainer = Engine(lambda engine, n: {"loss": n / engine.state.epoch})
    record = SaveHistory(folder)
    record.attach(trainer)
    SaveCurves(record, interval=interval).attach(trainer)
    drawn, seen = [], [None]

    def look(engine):
        content = (folder / "curves.png").read_bytes() if (folder / "curves.png").exists() else None
        if content != seen[-1]:
            drawn.append(engine.state.epoch)
            seen.append(content)

    trainer.add_event_handler(Events.EPOCH_COMPLETED, look)
    trainer.run([1.0, 2.0], max_epochs=epochs)
    return drawn


def test_the_picture_is_renewed_every_few_epochs_and_at_the_end(tmp_path):
    assert run(tmp_path, epochs=5, interval=2) == [2, 4, 5]
    picture = imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (370, 640)  # one panel, 3.2 x 1.85 inches
    assert picture[..., :3].std() > 0.05


def test_of_several_processes_one_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    run(tmp_path, epochs=1, interval=1)
    assert not (tmp_path / "curves.png").exists()


def test_the_scores_of_the_last_validation_are_in_the_last_picture(tmp_path):
    trainer = Engine(lambda engine, n: {"loss": n / engine.state.epoch})
    evaluator = Engine(lambda engine, _: engine.state.metrics.update(mean_dsc=0.5))
    record = SaveHistory(tmp_path)
    record.attach(trainer)
    AddToHistory(record).attach(evaluator)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
    SaveCurves(record).attach(trainer)
    trainer.run([1.0])
    assert imread(tmp_path / "curves.png").shape[:2] == (370, 800)  # two panels
