"""Questions about real monthly share prices, with answers that can be checked.

A question lists the month-end prices of one share, in whole dollars, oldest first, each with a letter:

    AAPL A 22 B 40 C 18 D 12 highest      ->  B      which month had the highest price
    AAPL A 22 B 40 C 18 D 12 price C      ->  18     what was the price in that month
    AAPL A 22 B 40 C 18 D 12 trend        ->  fall   from the first month to the last

The prices are those of `stocks.csv` of the package `vega_datasets`, read from its folder. Which months they are
stands in `extra_info` only, so no price can be known by heart: it must be read. Each month of each share is
either for training or for validation, never for both.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vega_datasets import local_data

KINDS = ("highest", "lookup", "trend")
MIX = ("highest", "lookup", "trend", "highest", "lookup")
"""Kinds in the data files, in turn: fewer of those that a coin gets right half the time."""
LETTERS = "ABCD"
DIRECTIONS = ("rise", "fall")
MIN_DOLLARS, MAX_DOLLARS = 10, 99
"""Prices of two digits: all shares but Google's have many."""
MIN_GAP = 0.15
"""Prices that a question compares differ by at least this share of the lower one."""
VAL_SHARE = 0.2
"""Share of the months that is kept for validation."""

_MAX_TRIES = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Quote:
    """The price of one share at one month. Example: `Quote("AAPL", "2004-03", 13.52)`."""

    symbol: str
    month: str
    price: float

    @property
    def dollars(self) -> int:
        """The price in whole dollars, half a dollar rounded up."""
        return int(self.price + 0.5)


@dataclass(frozen=True, slots=True)
class Question:
    """One question and its answer.

    Attributes:
        kind: One of `KINDS`.
        text: What the user says.
        answer: What the assistant should say.
        quotes: The quotes listed, oldest first; the first one has letter A.
    """

    kind: str
    text: str
    answer: str
    quotes: tuple[Quote, ...]


def load_quotes() -> list[Quote]:
    """Reads all monthly prices that have two digits in whole dollars."""
    rows = local_data.stocks().to_dict("records")
    quotes = (Quote(row["symbol"], f"{row['date']:%Y-%m}", float(row["price"])) for row in rows)
    return sorted(quote for quote in quotes if MIN_DOLLARS <= quote.dollars <= MAX_DOLLARS)


def split_quotes(quotes: Sequence[Quote], seed: int) -> tuple[list[Quote], list[Quote]]:
    """Divides the quotes into those for training and those for validation, share by share."""
    shuffle = random.Random(f"split {seed}")
    train: list[Quote] = []
    val: list[Quote] = []
    for symbol in sorted({quote.symbol for quote in quotes}):
        own = [quote for quote in quotes if quote.symbol == symbol]
        kept = set(shuffle.sample(own, round(VAL_SHARE * len(own))))
        train += [quote for quote in own if quote not in kept]
        val += [quote for quote in own if quote in kept]
    return train, val


def make_questions(
    quotes: Sequence[Quote], kinds: Sequence[str], num_questions: int, num_listed: int, rng: random.Random
) -> list[Question]:
    """Draws questions, the kinds in turn, every answer of a kind equally likely.

    Args:
        quotes: Where the prices come from.
        num_listed: Prices that a question lists, 2 to 4.

    Raises:
        ValueError: `quotes` do not hold enough different prices for such questions.
    """
    by_symbol: dict[str, list[Quote]] = {}
    for quote in quotes:
        by_symbol.setdefault(quote.symbol, []).append(quote)
    shares = [own for _, own in sorted(by_symbol.items()) if len(own) >= num_listed]
    if not shares:
        raise ValueError(f"no share has {num_listed} quotes among the {len(quotes)} given")
    return [_draw(shares, kinds[i % len(kinds)], num_listed, rng) for i in range(num_questions)]


def make_distinct_questions(
    quotes: Sequence[Quote], num_questions: int, num_listed: int, rng: random.Random, taken: Collection[str]
) -> list[Question]:
    """Draws questions with the kinds of `MIX` in turn, whose texts differ from each other and from those in `taken`.

    Raises:
        ValueError: `quotes` do not hold enough different prices for so many questions.
    """
    found: dict[str, Question] = {}
    for _ in range(_MAX_TRIES + 2 * num_questions):
        if len(found) == num_questions:
            return list(found.values())
        kind = MIX[len(found) % len(MIX)]
        (question,) = make_questions(quotes, (kind,), 1, num_listed, rng)
        if question.text not in taken:
            found.setdefault(question.text, question)
    raise ValueError(f"{len(quotes)} quotes give only {len(found)} different questions, not {num_questions}")


def possible_answers(kind: str, quotes: Sequence[Quote]) -> list[str]:
    """All answers to such a question that have the right form and use what is listed."""
    if kind == "highest":
        return list(LETTERS[: len(quotes)])
    if kind == "lookup":
        return [str(quote.dollars) for quote in quotes]
    return list(DIRECTIONS)


def _draw(shares: Sequence[Sequence[Quote]], kind: str, num_listed: int, rng: random.Random) -> Question:
    target = rng.randrange(len(DIRECTIONS) if kind == "trend" else num_listed)
    for _ in range(_MAX_TRIES):
        own = rng.choice(shares)
        quotes = tuple(sorted(rng.sample(own, num_listed), key=lambda quote: quote.month))
        if _is_clear(kind, target, [quote.dollars for quote in quotes]):
            break
    else:
        raise ValueError(f"the quotes given allow no question of kind {kind!r}")
    listed = " ".join(f"{letter} {quote.dollars}" for letter, quote in zip(LETTERS, quotes, strict=False))
    asked = {"highest": "highest", "lookup": f"price {LETTERS[target]}", "trend": "trend"}[kind]
    return Question(kind, f"{quotes[0].symbol} {listed} {asked}", possible_answers(kind, quotes)[target], quotes)


def _is_clear(kind: str, target: int, dollars: Sequence[int]) -> bool:
    """Whether the answer is the one wanted, and by a margin that rounding cannot undo."""
    if kind == "lookup":
        return True
    if kind == "trend":
        first, last = dollars[0], dollars[-1]
        low, high = (first, last) if DIRECTIONS[target] == "rise" else (last, first)
        return high >= (1 + MIN_GAP) * low
    others = [price for position, price in enumerate(dollars) if position != target]
    return dollars[target] >= (1 + MIN_GAP) * max(others)
