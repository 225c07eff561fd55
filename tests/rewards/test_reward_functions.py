"""Loading reward functions by name, and every way in which that can fail."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from verl.config.schema import RewardFunctionConfig
from verl.errors import ConfigError
from verl.rewards import RewardFunction, load_reward_functions, make_reward_function

UPSTREAM = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"


def config(path: str, **fields: Any) -> RewardFunctionConfig:
    return RewardFunctionConfig.model_validate({"path": path, **fields})


def load(path: str, **fields: Any) -> RewardFunction:
    (function,) = load_reward_functions([config(path, **fields)])
    return function


def error_of(path: str, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **fields)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _keep_import_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


# What works


def test_a_function_of_a_file_is_loaded_with_its_place(write_code):
    path = write_code("# a comment\n" + UPSTREAM)
    function = load(f"{path}:compute_score", weight=0.5)
    assert (function.name, function.weight, function.origin) == ("compute_score", 0.5, f"{path}:2")
    assert function.arguments == ("data_source", "solution_str", "ground_truth", "extra_info")


def test_a_function_of_a_package_is_loaded():
    assert load("verl.rewards.builtin:exact_match", name="exact").name == "exact"


def test_a_module_in_the_working_folder_is_found(write_code, tmp_path, monkeypatch):
    write_code(UPSTREAM, "reward_in_working_folder.py")
    monkeypatch.chdir(tmp_path)
    assert load("reward_in_working_folder:compute_score").weight == 1.0


def test_a_file_can_import_its_neighbours(write_code):
    write_code("VALUE = 3.0\n", "reward_neighbour.py")
    path = write_code("from reward_neighbour import VALUE\ndef f(solution_str):\n    return VALUE\n")
    assert load(f"{path}:f").function("x") == 3.0


def test_a_file_named_as_a_library_module_does_not_replace_it(write_code):
    import json

    load(f"{write_code(UPSTREAM, 'json.py')}:compute_score")
    assert sys.modules["json"] is json


def test_dataclasses_can_be_made_in_the_file(write_code):
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Box:\n    value: float\ndef f(solution_str):\n    return Box(2.0).value\n"
    )
    assert load(f"{write_code(code)}:f").function("x") == 2.0


def test_two_functions_of_one_file_share_its_module(write_code):
    path = write_code("SEEN = []\ndef f(solution_str): SEEN.append(1)\ndef g(solution_str): return len(SEEN)\n")
    f, g = load_reward_functions([config(f"{path}:f"), config(f"{path}:g")])
    f.function("x")
    assert g.function("x") == 1


def test_two_files_of_the_same_name_stay_apart(write_code):
    paths = [write_code(f"def f(solution_str): return {i}\n", f"{i}/reward.py") for i in (1, 2)]
    functions = load_reward_functions([config(f"{path}:f", name=f"f{i}") for i, path in enumerate(paths)])
    assert [function.function("x") for function in functions] == [1, 2]
    assert len({function.function.__module__ for function in functions}) == 2


@pytest.mark.parametrize(
    ("signature", "arguments"),
    [
        ("solution_str", ("solution_str",)),
        ("ground_truth, solution_str", ("solution_str", "ground_truth")),
        ("*, prompt, messages, finish_reason", ("prompt", "messages", "finish_reason")),
        ("solution_str, threshold=0.5, *rest", ("solution_str",)),
        (
            "solution_str, **kwargs",
            ("data_source", "solution_str", "ground_truth", "extra_info", "prompt", "messages", "finish_reason"),
        ),
        ("", ()),
    ],
)
def test_functions_take_the_offered_names_they_ask_for(write_code, sample, signature, arguments):
    function = load(f"{write_code(f'def f({signature}):{chr(10)}    return 1.0')}:f")
    assert function.arguments == arguments
    assert function.call(sample()) == 1.0


def test_further_arguments_come_from_the_configuration(write_code, sample):
    path = write_code("def f(solution_str, bonus):\n    return bonus\n")
    assert load(f"{path}:f", kwargs={"bonus": 0.25}).call(sample()) == 0.25


def test_callable_objects_and_decorated_functions_are_taken(write_code, sample):
    code = (
        "import functools\n"
        "def plain(f):\n    @functools.wraps(f)\n    def inner(*args, **kwargs): return f(*args, **kwargs)\n"
        "    return inner\n"
        "@plain\ndef decorated(solution_str): return 1.0\n"
        "class Judge:\n    def __call__(self, solution_str): return 2.0\n"
        "judge = Judge()\npartial = functools.partial(lambda solution_str, value: value, value=3.0)\n"
    )
    path = write_code(code)
    values = [load(f"{path}:{name}").call(sample()) for name in ("decorated", "judge", "partial")]
    assert values == [1.0, 2.0, 3.0]


def test_what_a_function_writes_into_its_arguments_does_not_reach_other_samples(sample):
    def f(extra_info, messages):
        extra_info["level"] = 2
        messages[0]["content"] = "changed"
        return 0.0

    given = sample()
    make_reward_function(f, "f", 1.0, {}, "reward").call(given)
    assert given.extra_info == {"level": 1}
    assert given.messages == [{"role": "user", "content": "2+2?"}]


# What fails


@pytest.mark.parametrize("path", ["reward.py", ":f", "reward.py:", "reward.py:a/b", ""])
def test_a_name_without_function_says_what_is_allowed(path):
    assert error_of(path) == (
        f"reward.functions[0].path is {path!r}; allowed are 'file.py:function' and 'package.module:function', "
        "with the function after a colon."
    )


def test_a_missing_file_names_the_nearest(write_code, tmp_path):
    write_code(UPSTREAM)
    message = error_of(f"{tmp_path}/my_rewards.py:f")
    assert (
        message == f"reward.functions[0].path: no such file: '{tmp_path}/my_rewards.py'. Did you mean 'my_reward.py'?"
    )


def test_a_missing_file_in_a_missing_folder_names_the_folder(tmp_path):
    assert f"The folder '{tmp_path}/no' does not exist." in error_of(f"{tmp_path}/no/a.py:f")


def test_a_path_without_py_is_told_apart_from_a_module(tmp_path):
    assert "does not end in .py; give 'file.py:function'" in error_of(f"{tmp_path}/reward:f")


def test_a_missing_function_names_the_nearest(write_code):
    path = write_code(UPSTREAM)
    assert error_of(f"{path}:compute_scores") == (
        f"reward.functions[0].path: '{path}' has no function 'compute_scores'. Did you mean 'compute_score'?"
    )


def test_a_missing_function_unlike_all_others_lists_them(write_code):
    assert error_of(f"{write_code(UPSTREAM)}:zzz").endswith("has no function 'zzz'. It has compute_score.")


def test_a_missing_module_says_what_to_do():
    message = error_of("no_such_package.rewards:f")
    assert message.startswith("reward.functions[0].path: there is no module 'no_such_package' ")
    assert "Install its package" in message


def test_an_import_that_is_missing_inside_a_module_is_not_taken_for_the_module(write_code, tmp_path, monkeypatch):
    path = write_code("import no_such_dependency\n", "reward_with_missing_import.py")
    monkeypatch.chdir(tmp_path)
    assert error_of("reward_with_missing_import:f") == (
        "reward.functions[0].path: importing 'reward_with_missing_import' failed with ModuleNotFoundError at "
        f"{path}:1: No module named 'no_such_dependency'"
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1\ny = undefined\n", "NameError at {path}:2: name 'undefined' is not defined"),
        ("def f(:\n", "SyntaxError at {path}:1: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "SystemExit at {path}:2: 3"),
        ("def g():\n    raise KeyError('k')\ng()\n", "KeyError at {path}:2: 'k'"),
        ("import json\njson.loads('{')\n", "JSONDecodeError at {path}:2: "),
    ],
)
def test_a_file_that_cannot_be_imported_shows_line_and_message(write_code, code, reason):
    path = write_code(code)
    expected = f"reward.functions[0].path: importing '{path}' failed with {reason.format(path=path)}"
    assert error_of(f"{path}:f").startswith(expected)


def test_a_file_with_null_bytes_is_an_import_error(write_code):
    path = write_code("def f(): pass\0\n")
    assert f"importing '{path}' failed with SyntaxError" in error_of(f"{path}:f")


@pytest.mark.parametrize(
    ("code", "kind"), [("f = 5", "of type int"), ("class f: pass", "a class"), ("f = None", "of type NoneType")]
)
def test_what_is_no_function_is_refused(write_code, code, kind):
    assert error_of(f"{write_code(code)}:f") == (
        f"reward.functions[0]: 'f' is {kind}; it must be a function such as "
        "def compute_score(data_source, solution_str, ground_truth, extra_info): ..."
    )


def test_an_argument_that_is_not_offered_is_explained(write_code):
    assert error_of(f"{write_code('def f(solution_str, tokens, judge): ...')}:f") == (
        "reward.functions[0]: 'f' needs 'tokens', 'judge', which is not offered. Offered by name are data_source, "
        "solution_str, ground_truth, extra_info, prompt, messages, finish_reason; give others a default or set them in "
        "reward.functions[0].kwargs."
    )


def test_a_positional_only_argument_is_explained(write_code):
    message = error_of(f"{write_code('def f(solution_str, /): ...')}:f")
    assert "has the positional-only argument 'solution_str'; arguments are passed by name" in message


def test_a_function_without_readable_arguments_is_explained(write_code):
    assert "the arguments of 'f' cannot be read" in error_of(f"{write_code('f = dict.fromkeys; f = iter')}:f")


def test_an_unknown_keyword_argument_names_the_nearest(write_code):
    message = error_of(f"{write_code('def f(solution_str, bonus=0): ...')}:f", kwargs={"bonos": 1})
    assert message == "reward.functions[0].kwargs: 'f' takes no argument 'bonos'. Did you mean 'bonus'?"


def test_a_keyword_argument_may_not_replace_what_the_trainer_fills(write_code):
    message = error_of(f"{write_code(UPSTREAM)}:compute_score", kwargs={"ground_truth": "4"})
    assert message == "reward.functions[0].kwargs: ground_truth is filled by the trainer for each sample; remove it."


def test_two_functions_of_the_same_name_need_names(write_code):
    path = write_code(UPSTREAM)
    with pytest.raises(ConfigError) as caught:
        load_reward_functions([config(f"{path}:compute_score"), config(f"{path}:compute_score")])
    assert str(caught.value) == (
        "reward.functions[1] has the same name as reward.functions[0]: 'compute_score'. Set reward.functions[1].name."
    )


def test_errors_name_the_position_in_the_list(write_code):
    with pytest.raises(ConfigError, match=r"^reward\.functions\[1\]\.path: no such file"):
        load_reward_functions([config(f"{write_code(UPSTREAM)}:compute_score"), config("none.py:f")])
