"""Arrays, histograms and images: what a user hands over and what is kept of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from verl.tracking.histogram import make_histogram
from verl.tracking.png_image import as_image, contact_sheet, draw_boxes, encode_png, png_size
from verl.tracking.values import as_array


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.5],
        (1.0, 2.5),
        np.array([1.0, 2.5]),
        torch.tensor([1.0, 2.5]),
        torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
        torch.tensor([1.0, 2.5], requires_grad=True),
        [torch.tensor(1.0), torch.tensor(2.5)],
    ],
    ids=lambda values: str(getattr(values, "dtype", type(values).__name__)),
)
def test_arrays_of_any_package_are_taken(values: object) -> None:
    assert as_array(values).tolist() == [1.0, 2.5]


@pytest.mark.parametrize("values", [["a"], "abc", [[1], [2, 3]], {"a": 1}, None, [None], [1j]])
def test_what_is_no_array_of_numbers_is_an_error(values: object) -> None:
    with pytest.raises(TypeError, match="expected an array of numbers"):
        as_array(values)


def test_a_histogram_of_whole_numbers_has_a_bucket_for_each() -> None:
    histogram, excluded = make_histogram([1, 1, 2, 4])
    assert histogram is not None
    assert excluded == 0
    assert histogram.bucket_limits == [1.5, 2.5, 3.5, 4.5]
    assert histogram.bucket_counts == [2.0, 1.0, 0.0, 1.0]
    assert (histogram.minimum, histogram.maximum, histogram.count) == (1.0, 4.0, 4)
    assert (histogram.sum, histogram.sum_squares) == (8.0, 22.0)


def test_given_edges_are_used_and_what_lies_outside_is_counted_at_the_border() -> None:
    histogram, _ = make_histogram([-5.0, 0.5, 1.5, 99.0], bins=[0.0, 1.0, 2.0])
    assert histogram is not None
    assert histogram.bucket_limits == [1.0, 2.0]
    assert histogram.bucket_counts == [2.0, 2.0]
    assert (histogram.minimum, histogram.maximum) == (-5.0, 99.0)


@pytest.mark.parametrize("bins", [None, 10, "auto", "fd", "tensorflow", [-1e30, 0.0, 1e30]])
@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=50))
def test_every_finite_value_is_counted_once(bins, values) -> None:
    histogram, excluded = make_histogram(values, bins)
    assert histogram is not None
    assert excluded == 0
    assert sum(histogram.bucket_counts) == len(values) == histogram.count
    assert len(histogram.bucket_limits) == len(histogram.bucket_counts) <= 2000
    assert histogram.bucket_limits == sorted(set(histogram.bucket_limits))


def test_equal_values_make_one_bucket_around_them() -> None:
    histogram, _ = make_histogram([0.3] * 7)
    assert histogram is not None
    assert histogram.bucket_counts == [7.0]
    assert histogram.bucket_limits[0] > 0.3


def test_values_that_are_not_finite_are_left_out_and_counted() -> None:
    histogram, excluded = make_histogram([1.0, np.nan, np.inf, 2.0])
    assert histogram is not None
    assert (histogram.count, excluded) == (2, 2)


@pytest.mark.parametrize("values", [[], [np.nan]])
def test_no_finite_value_makes_no_histogram(values: list[float]) -> None:
    assert make_histogram(values)[0] is None


@pytest.mark.parametrize("bins", [0, "no such rule", [1.0], [2.0, 1.0]])
def test_bad_bins_are_an_error(bins: object) -> None:
    with pytest.raises(ValueError, match=r"bins|buckets|edges|rule"):
        make_histogram([1.0, 2.0], bins)  # type: ignore[arg-type]


def test_a_rule_that_asks_for_millions_of_buckets_is_cut() -> None:
    values = np.concatenate([np.linspace(0, 1e-6, 1000), [1e6]])
    histogram, _ = make_histogram(values, "fd")
    assert histogram is not None
    assert len(histogram.bucket_counts) <= 512


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_png_decodes_to_the_same_pixels(channels: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    png = encode_png(pixels)
    assert np.array_equal(decoded(png).reshape(pixels.shape), pixels)
    (tmp_path / "a.png").write_bytes(png)
    assert png_size(tmp_path / "a.png") == (7, 5)


def test_a_file_that_is_no_png_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"GIF89a")
    with pytest.raises(ValueError, match="not a PNG"):
        png_size(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("shape", "dataformats", "expected"),
    [
        ((3, 4, 5), "CHW", (4, 5, 3)),
        ((4, 5, 3), "HWC", (4, 5, 3)),
        ((4, 5), "HW", (4, 5, 1)),
        ((5, 4), "WH", (4, 5, 1)),
        ((5, 3, 4, 5), "NCHW", (8, 15, 3)),
        ((2, 4, 5), "NHW", (4, 10, 1)),
    ],
)
def test_images_of_any_layout_become_rows_columns_channels(shape, dataformats, expected) -> None:
    assert as_image(np.zeros(shape), dataformats).shape == expected


def test_floats_are_taken_from_zero_to_one_and_clipped() -> None:
    image = as_image(torch.tensor([[0.0, 0.5, 1.0, 2.0, -1.0, float("nan")]]), "HW")
    assert image[0, :, 0].tolist() == [0, 128, 255, 255, 0, 0]


def test_integers_are_taken_as_bytes_and_truth_values_as_black_and_white() -> None:
    assert as_image(np.array([[0, 200, 300, -5]]), "HW")[0, :, 0].tolist() == [0, 200, 255, 0]
    assert as_image(np.array([[True, False]]), "HW")[0, :, 0].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("shape", "dataformats"), [((4, 5), "CHW"), ((5, 4, 5), "CHW"), ((0, 4), "HW"), ((4, 5), "AB")]
)
def test_an_image_that_does_not_fit_its_layout_is_an_error(shape, dataformats) -> None:
    with pytest.raises(ValueError, match=r"image|dataformats"):
        as_image(np.zeros(shape), dataformats)


def test_a_contact_sheet_goes_row_by_row() -> None:
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] + np.zeros((3, 1, 1, 1), np.uint8)
    assert contact_sheet(images)[..., 0].tolist() == [[0, 1], [2, 0]]


def test_boxes_are_drawn_red_and_cut_at_the_border() -> None:
    drawn = draw_boxes(np.zeros((4, 6, 1), np.uint8), np.array([1.0, 1.0, 99.0, 2.0]))
    assert drawn.shape == (4, 6, 3)
    assert drawn[1, 1].tolist() == [255, 0, 0]
    assert drawn[0].sum() == 0
    assert drawn[2, 5].tolist() == [255, 0, 0]
