"""Pictures: what stands in their axes, and that an SVG needs nothing but itself."""

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from diskmoe.bench.pictures import (
    Parts,
    Point,
    draw_acceptance,
    draw_experts,
    draw_hit_rates,
    draw_speed_bars,
    draw_speeds,
    draw_times,
    share_interval,
)
from diskmoe.bench.svg import alone, svg_of


@pytest.fixture
def axes() -> Axes:
    return Figure(layout="constrained").add_subplot()


def lines_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Points of each line that the legend names."""
    return {
        str(line.get_label()): [tuple(point) for point in np.asarray(line.get_xydata()).tolist()]
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def bars_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """(begin, width) of each bar, by series."""
    return {
        str(bars.get_label()): [(bar.get_x(), bar.get_width()) for bar in bars.patches]
        for bars in axes.containers
        if isinstance(bars, BarContainer)
    }


def words_of(axes: Axes) -> set[str]:
    figure = axes.figure
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    return {text.get_text() for text in [*texts, *axes.texts, axes.title]}


def test_speeds_go_through_medians_from_zero_with_every_run_as_a_dot(axes: Axes) -> None:
    points = [Point(4, (9.0, 10.0, 14.0)), Point(8, (20.0,))]
    draw_speeds(axes, {"a": points}, "slots per layer", "cold; n = 3")
    assert lines_of(axes) == {"a": [(4, 10), (8, 20)]}
    (dots,) = [line for line in axes.get_lines() if line.get_label() == "_runs"]
    assert np.asarray(dots.get_xydata()).tolist() == [[4, 9], [4, 10], [4, 14], [8, 20]]
    (spread, _) = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    assert spread.tolist() == [[4, 9], [4, 14]]
    assert axes.get_ylim()[0] == 0 and axes.get_xlim()[0] == 0
    assert axes.get_xlabel() == "slots per layer" and axes.get_ylabel() == "tokens/s"


def test_arms_stand_beside_each_other_where_they_have_the_same_x(axes: Axes) -> None:
    draw_speeds(axes, {"a": [Point(10, (1.0,))], "b": [Point(10, (1.0,))]}, "x")
    found = lines_of(axes)
    assert found["a"][0][0] < 10 < found["b"][0][0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10"]


def test_bars_of_speed_reach_from_zero_to_the_median(axes: Axes) -> None:
    draw_speed_bars(axes, {"a": (1.0, 2.0, 9.0), "llama.cpp": (4.0,)})
    assert list(bars_of(axes).values()) == [[(0, 2.0), (0, 4.0)]]
    assert axes.get_xlim()[0] == 0
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "llama.cpp"]


def test_hit_rates_are_shares_of_a_hundred_with_the_best_and_the_measured(axes: Axes) -> None:
    draw_hit_rates(axes, {"lru": [(4, 0.25), (8, 0.5)]}, [(4, 0.5), (8, 0.75)], [(4, 0.3)])
    assert lines_of(axes) == {
        "Belady (knows the future)": [(4, 50), (8, 75)],
        "lru": [(4, 25), (8, 50)],
        "measured in runs": [(4, 30)],
    }
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] >= 100


def test_acceptance_is_by_position_with_intervals_and_no_point_where_nothing_was_judged(
    axes: Axes,
) -> None:
    draw_acceptance(axes, {"b: mtp": [(8, 6), (4, 1), (0, 0)]})
    assert lines_of(axes) == {"b: mtp (12 judged)": [(1, 75), (2, 25)]}
    segments = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    assert all(low[1] < high[1] for low, high in segments)


def test_an_interval_of_a_share_is_wilsons() -> None:
    low, high = share_interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # Wilson 1927, as in textbooks
    assert share_interval(0, 5)[0] == 0 and share_interval(5, 5)[1] == 1


def test_a_tokens_time_is_stacked_in_milliseconds(axes: Axes) -> None:
    draw_times(axes, {"a": Parts(0.010, 0.020, 0.005), "b": Parts(0.0, 0.030, 0.0)})
    found = bars_of(axes)
    assert found["read wait"] == [(0, pytest.approx(10)), (0, 0)]
    assert found["compute"] == [(pytest.approx(10), pytest.approx(20)), (0, pytest.approx(30))]
    assert found["other"][0] == (pytest.approx(30), pytest.approx(5))
    assert {"35 ms", "30 ms", "read wait", "compute", "other"} <= words_of(axes)
    assert axes.get_xlim()[0] == 0


def test_the_map_of_experts_shows_each_layers_shares(axes: Axes) -> None:
    draw_experts(axes, np.array([[3, 1], [0, 0]]), [1, 7], "note")
    (image,) = axes.get_images()
    assert np.asarray(image.get_array()).tolist() == [[75, 25], [0, 0]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "7"]
    assert axes.get_xlabel() == "expert" and axes.get_ylabel() == "layer"


def plain(axes: Axes) -> None:
    draw_speeds(axes, {"a $x$ <&>": [Point(1, (2.0,))]}, "slots", "a note")


def test_an_svg_is_well_formed_and_names_nothing_outside_itself() -> None:
    text = svg_of(plain, "speed", 'Speed of "a" & b')
    ElementTree.fromstring(text)
    assert 'aria-label="Speed of &quot;a&quot; &amp; b"' in text
    assert "a $x$ &lt;&amp;&gt;" in text
    outside = re.sub(r' xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", text)
    assert "http" not in outside and "<style" not in outside and "<script" not in outside


def test_colours_follow_the_screen_and_a_file_of_its_own_has_them() -> None:
    text = svg_of(plain, "speed", "Speed")
    used = set(re.findall(r"var\((--\w+)\)", text))
    assert {"--ink", "--grid", "--c0"} <= used
    assert not re.findall(r"#[0-9a-f]{6}\b", text)
    file = alone(text)
    ElementTree.fromstring(file)
    for screen in ("svg{", "@media(prefers-color-scheme:dark){svg{"):
        declared = file[file.index(screen) :].split("}")[0]
        assert all(f"{name}:" in declared for name in used)


def test_pictures_on_one_page_share_no_id() -> None:
    first, second = (svg_of(plain, name, "Speed") for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip((first, second), ids, strict=True):
        asked = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert asked and asked <= own


@pytest.mark.parametrize(
    "draw", [plain, lambda axes: draw_experts(axes, np.eye(4, 8, dtype=int), range(4))]
)
def test_the_same_data_give_the_same_bytes(draw: Callable[[Axes], None]) -> None:
    assert svg_of(draw, "x", "X") == svg_of(draw, "x", "X")


def test_a_legend_of_long_names_has_fewer_columns_and_stays_on_the_picture(axes: Axes) -> None:
    names = ["a: ngram", "a: mtp", "b: grammar", "b: GRAMMAR=fit_compact NGRAM=0 MTP=0: ngram"]
    draw_acceptance(axes, {name: [(25, 20)] for name in names})
    (legend,) = axes.figure.legends
    assert legend.get_window_extent().width <= axes.figure.bbox.width
    assert [text.get_text() for text in legend.get_texts()] == [f"{n} (25 judged)" for n in names]
