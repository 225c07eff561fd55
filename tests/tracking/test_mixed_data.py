"""`tracking.log(data, step)`, the call of upstream: values of all kinds in one dictionary, and never an error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.journal import JournalReader
from verl.tracking import Tracking
from verl.tracking.mixed_data import sort_data


def logged(run: Path, kind: str) -> dict[str, Any]:
    """What the records of a kind hold, by tag."""
    content = {"text": "text", "histogram": "histogram", "artifact": "path"}[kind]
    name = "name" if kind == "artifact" else "tag"
    return {record.fields[name]: record.fields[content] for record in JournalReader(run).records({kind})}


def test_the_upstream_call_logs_each_value_as_what_it_is(tmp_path: Path) -> None:
    data = {
        "actor/loss": torch.tensor(0.5),
        "critic/values/mean": np.float32(2),
        "timing": {"gen": 1.5, "update": {"actor": 2.5}},
        "none": None,
        "nan": math.nan,
        "one": [7],
        "sample": "2 + 2 = 4",
        "prompts": ["a", "b"],
        "lengths": [3, 5, 4],
        "scores": torch.tensor([0.5, 0.25], dtype=torch.bfloat16),
        "grid": np.ones((2, 3)),
        "object": object(),
        "ragged": [[1], [2, 3]],
    }
    tracking = Tracking(
        project_name="p", experiment_name="e", default_backend=["tensorboard"], config={"lr": 1}, log_dir=str(tmp_path)
    )
    tracking.log(data=data, step=3)
    tracking.finish("finished")

    (metrics,) = JournalReader(tmp_path).records({"metrics"})
    numbers = dict(metrics.fields["metrics"])
    assert metrics.step == 3
    assert math.isnan(numbers.pop("nan"))
    assert numbers == {
        "actor/loss": 0.5,
        "critic/values/mean": 2.0,
        "timing/gen": 1.5,
        "timing/update/actor": 2.5,
        "one": 7,
    }
    assert logged(tmp_path, "text") == {"sample": "2 + 2 = 4", "prompts": "a\n\nb"}
    histograms = logged(tmp_path, "histogram")
    assert {tag: histogram["num"] for tag, histogram in histograms.items()} == {"lengths": 3, "scores": 2, "grid": 6}
    warnings = [record.fields["text"] for record in JournalReader(tmp_path).records({"note"})]
    assert [text for key in ("none", "object", "ragged") for text in warnings if f"'{key}'" in text] == warnings


def test_positional_arguments_of_upstream_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", str(tmp_path))
    tracking = Tracking("p", "e", "tensorboard", {"lr": 1})
    tracking.log({"loss": 0.5}, 1)
    tracking.log({"loss": 0.25}, 2)
    tracking.finish("finished")
    assert JournalReader(tmp_path).metrics()["loss"].values.tolist() == [0.5, 0.25]


def test_a_pillow_image_is_an_image(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image").new("P", (4, 3))
    with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking:
        tracking.log({"sheet": image}, 1)
    assert "sheet" in logged(tmp_path, "artifact")


def test_data_that_is_no_dictionary_is_a_warning(tmp_path: Path) -> None:
    with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking:
        tracking.log([1, 2], 1)  # type: ignore[arg-type]
    (note,) = JournalReader(tmp_path).records({"note"})
    assert "not a list" in note.fields["text"]


class Hostile:
    """Says it is an array, and breaks."""

    shape = (2,)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")


def test_dictionaries_in_themselves_and_objects_that_break_are_refused_by_name() -> None:
    loop: dict[str, Any] = {"value": 1.0}
    loop["again"] = loop
    found = sort_data({"loop": loop, "hostile": Hostile()})
    assert set(found.numbers) == {"loop/value", "loop/again", "hostile"}
    assert "hostile" in found.numbers


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.lists(st.floats() | st.text(max_size=2) | st.none(), max_size=4)
    | st.sampled_from(
        [object(), Hostile(), np.array(["a"]), np.array([1 + 2j, 3]), torch.zeros(0), np.datetime64("nat")]
    )
)
trees = st.recursive(leaves, lambda inner: st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4))


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory):
    with Tracking("p", "e", [], log_dir=str(tmp_path_factory.mktemp("run"))) as tracking:
        yield tracking


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), trees, max_size=6), st.integers(0, 5))
def test_nothing_in_it_is_an_error(tracking: Tracking, data: dict[Any, Any], step: int) -> None:
    tracking.log(data, step)
    assert tracking.step == step


@given(st.dictionaries(st.text(min_size=1), st.floats() | st.integers(-(2**60), 2**60)))
def test_plain_numbers_stay_what_they_are(data: dict[str, float]) -> None:
    assert repr(sort_data(data).numbers) == repr(data)
