"""Which tracker to choose: a few questions, one answer with its reason, its cost and the next commands.

The tree: a team in China takes SwanLab; elsewhere, data that must not leave the house takes MLflow, run by oneself, and
data that may takes W&B. One person who wants nothing but local files takes TensorBoard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from verl.config.nearest import nearest_name
from verl.errors import ConfigError
from verl.tracking.table import BUILTIN


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        name: What it is about. text: The question itself.
        answers: Answers that can be given, with what each means; the first is taken if none is given.
    """

    name: str
    text: str
    answers: Mapping[str, str]


QUESTIONS = (
    Question("team", "Where is the team?", {"elsewhere": "not in China", "china": "in China"}),
    Question(
        "privacy",
        "How private are the data, samples of the model included?",
        {"normal": "they may be uploaded to a service", "high": "they must stay on machines of your own"},
    ),
    Question(
        "operator",
        "Who would run a server for it?",
        {"nobody": "nobody: a service, or files without a server", "us": "we run servers of our own"},
    ),
    Question(
        "network",
        "Can the machine that trains reach the network?",
        {"online": "yes", "offline": "no: what is to be uploaded goes later, from another machine"},
    ),
    Question(
        "scope",
        "Who looks at the runs?",
        {"team": "several people, from their own machines", "local": "one person, from local files, nothing else"},
    ),
)
"""In the order in which answers are given with `--answers`."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The tracker to choose.

    Attributes:
        tracker: Its name in `trainer.logger`. title: Its name for people.
        reason: Why. cost: What it needs, or takes. commands: What to type, in order; "#" lines explain.
        alternative: What else fits.
    """

    tracker: str
    title: str
    reason: str
    cost: str
    commands: tuple[str, ...]
    alternative: str = ""


def read_answers(given: Sequence[str]) -> dict[str, str]:
    """Answers in the order of `QUESTIONS`; an empty or missing one is the first that the question offers.

    Raises:
        ConfigError: There are too many, or one is none of those offered.
    """
    if len(given) > len(QUESTIONS):
        names = ",".join(question.name for question in QUESTIONS)
        raise ConfigError(f"{len(given)} answers were given to {len(QUESTIONS)} questions; the order is {names}")
    padded = [*given, *[""] * (len(QUESTIONS) - len(given))]
    return {question.name: read_answer(question, text) for question, text in zip(QUESTIONS, padded, strict=True)}


def read_answer(question: Question, text: str) -> str:
    """One answer: a word, the beginning of one, or its number.

    Raises:
        ConfigError: It is none of those offered.
    """
    answers = list(question.answers)
    said = text.strip().lower()
    if not said:
        return answers[0]
    if said.isdecimal() and 1 <= int(said) <= len(answers):
        return answers[int(said) - 1]
    beginning = [answer for answer in answers if answer.startswith(said)]
    if len(beginning) == 1:
        return beginning[0]
    nearest = nearest_name(said, answers)
    suggestion = f"did you mean {nearest!r}?" if nearest else f"answers are {' and '.join(map(repr, answers))}"
    raise ConfigError(f"{text.strip()!r} is no answer to {question.name!r} ({question.text}); {suggestion}")


def matters(question: Question, answered: Mapping[str, str]) -> bool:
    """Whether an answer can still change what is recommended, whatever the answers to the questions after it."""
    later = [other for other in QUESTIONS if other.name not in answered and other is not question]
    for answers in product(*(other.answers for other in later)):
        known = {**answered, **dict(zip((other.name for other in later), answers, strict=True))}
        if len({choose({**known, question.name: answer}) for answer in question.answers}) > 1:
            return True
    return False


def choose(answers: Mapping[str, str]) -> Recommendation:
    """The tracker for these answers (question's name -> answer, all of them)."""
    if answers["scope"] == "local":
        return _local()
    if answers["team"] == "china":
        return _in_china(answers)
    return _own_server(answers) if answers["privacy"] == "high" else _service(answers)


def _local() -> Recommendation:
    other = "trackio"
    return Recommendation(
        "tensorboard",
        "TensorBoard",
        "one person who looks at local files needs neither a service nor a server",
        "nothing: event files in the run directory; no sharing, 32-bit numbers",
        _commands("tensorboard", look="tensorboard --logdir logs"),
        f"{other} (pip install {BUILTIN[other].package}): a local dashboard with tables of samples and alerts",
    )


def _in_china(answers: Mapping[str, str]) -> Recommendation:
    is_private = answers["privacy"] == "high"
    login, cost = ("swanlab login",), "uploads data to SwanLab's cloud in China; an account"
    if is_private:
        login = ("# your own SwanLab server:", "export SWANLAB_API_HOST=https://SERVER", "swanlab login")
        cost = "needs infrastructure of your own: a self-hosted SwanLab, for nothing may be uploaded to its cloud"
    return Recommendation(
        "swanlab",
        "SwanLab",
        "a team in China reaches it quickly and without a proxy, and data stay in the country",
        cost,
        _commands("swanlab", *login, is_offline=answers["network"] == "offline"),
        "MLflow on a server of your own, if you run one already" if is_private else "",
    )


def _own_server(answers: Mapping[str, str]) -> Recommendation:
    if answers["operator"] == "us":
        setup = (
            "# on your server:",
            "mlflow server --host 0.0.0.0 --port 5000 --allowed-hosts SERVER:5000 \\",
            "  --backend-store-uri sqlite:///mlflow.db",
            "# where you run verl:",
            "export MLFLOW_TRACKING_URI=http://SERVER:5000",
        )
        cost, look = (
            "needs infrastructure of your own: a server, its disk, backups, logins",
            "# then look at http://SERVER:5000",
        )
    else:
        setup = ("export MLFLOW_TRACKING_URI=sqlite:///mlflow.db",)
        cost = "a database file that you look after; a server of your own once several people look at it"
        look = "mlflow ui --backend-store-uri sqlite:///mlflow.db"
    return Recommendation(
        "mlflow",
        "MLflow",
        "data that must stay in the house stay there: it runs wholly on machines of your own",
        cost,
        _commands(
            "mlflow", *setup, look=look, is_offline=answers["network"] == "offline" and answers["operator"] == "us"
        ),
    )


def _service(answers: Mapping[str, str]) -> Recommendation:
    return Recommendation(
        "wandb",
        "W&B",
        "an international team whose data may be uploaded gets the richest charts and reports, and nothing to operate",
        "uploads data, samples of the model included, to W&B's cloud; an account; a proxy (trainer.wandb_proxy) "
        "where the network needs one",
        _commands("wandb", "wandb login", is_offline=answers["network"] == "offline"),
        "MLflow on your own server, since you run servers anyway" if answers["operator"] == "us" else "",
    )


def _commands(tracker: str, *setup: str, look: str = "", is_offline: bool = False) -> tuple[str, ...]:
    """Commands from nothing to a run that is shown."""
    install = f"pip install {BUILTIN[tracker].package}"
    check = f"verl doctor 'trainer.logger=[console,{tracker}]'"
    looking = () if not look else (look,) if look.startswith("#") else ("# to look at it:", look)
    if not is_offline:
        return (install, *setup, check, f"verl train ... 'trainer.logger=[console,{tracker}]'", *looking)
    return (
        "# on the machine without network; the journal keeps everything:",
        "verl train ... 'trainer.logger=[console]'",
        "# then copy the run directory to a machine with network, and there:",
        install,
        *setup,
        check,
        f"verl sync RUN --to {tracker}",
        *looking,
    )
