"""The tasks that the real model is measured at: ten prompts each, as a chat application would write them, and an output type."""

import datetime
import enum
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import outlines.types
from pydantic import BaseModel, Field

DATA = Path(__file__).parent / "data"


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=120)
    city: str = Field(max_length=30)


class Order(BaseModel):
    item: str = Field(max_length=30)
    quantity: int = Field(ge=1, le=999)
    colour: Literal["red", "green", "blue", "black", "white", "yellow", "grey", "brown"]
    express: bool


class Event(BaseModel):
    day: datetime.date
    city: str = Field(max_length=30)
    euros: int = Field(ge=0, le=999)


class Topic(enum.Enum):
    politics = "politics"
    science = "science"
    health = "health"
    sports = "sports"
    economy = "economy"
    culture = "culture"


class Article(BaseModel):
    """Six fields, of which one is a date and one a list of labels."""

    title: str = Field(max_length=80)
    author: str = Field(max_length=40)
    published: datetime.date
    language: Literal["English", "French", "German", "Spanish"]
    topics: list[Topic] = Field(min_length=1, max_length=3)
    pages: int = Field(ge=1, le=999)


class Judgement(BaseModel):
    reason: str = Field(max_length=200)
    verdict: Literal["accept", "reject"]


class Weather(BaseModel):
    city: str = Field(max_length=30)
    unit: Literal["celsius", "fahrenheit"]


class WeatherCall(BaseModel):
    name: Literal["get_weather"]
    arguments: Weather


class Search(BaseModel):
    query: str = Field(max_length=60)


class SearchCall(BaseModel):
    name: Literal["web_search"]
    arguments: Search


RECORDS: dict[str, tuple[type[BaseModel], str]] = {
    "person": (Person, "name, age and city"),
    "order": (Order, "item, quantity, colour and express (true or false)"),
    "event": (Event, "day (YYYY-MM-DD), city and euros"),
}
"""Types of the records in ``data/records.jsonl``, and the keys as a prompt names them."""

EXTRACT = "Extract the {keys} from the text. Answer with a JSON object that has these keys.\n\nText: {text}"
CLASSIFY = "What is the sentiment of this review? Answer with one word: {labels}.\n\nReview: {text}"

SQL = r"""
start: "SELECT " columns " FROM " name (" WHERE " condition)? (" LIMIT " NUMBER)? ";"?
columns: "*" | name (", " name)*
condition: name OPERATOR value (" AND " name OPERATOR value)*
value: NUMBER | "'" WORD "'"
name: NAME
OPERATOR: " = " | " > " | " < "
NAME: /[a-z_]{1,20}/
WORD: /[A-Za-z ]{1,20}/
NUMBER: /[0-9]{1,6}/
"""

PERCENT = "[0-9]|[1-9][0-9]|100"
FIVE = "very negative", "negative", "neutral", "positive", "very positive"
TOPICS = "politics", "science", "health", "sports", "business", "travel", "food", "music", "weather", "technology"
CITIES = "Lisbon", "Buenos Aires", "Reykjavik", "Ho Chi Minh City"
BANNED = ["the", "very", "beautiful", "people", "world"]


def data(name: str) -> list[dict[str, Any]]:
    """Return a labelled set."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


REVIEWS = [row["text"] for row in data("reviews")[::6]]
PEOPLE = [row["text"] for row in data("records") if row["kind"] == "person"][:10]
ITEMS = json.loads((DATA / "prompts.json").read_text(encoding="utf-8"))


@final
@dataclass(frozen=True)
class Task:
    """A kind of call.

    Attributes
    ----------
    name
        The name in tables and of files.
    template, items
        The prompts: ``template`` with each item in the place of ``{}``.
    output_type
        What Outlines takes; ``None`` for free text.
    tokens
        The budget of a draw.
    options
        Keywords of a call of this package alone.
    batch
        Prompts of one call.
    """

    name: str
    template: str
    items: list[str]
    output_type: Any
    tokens: int = 64
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1

    def prompts(self, seed: int) -> list[str]:
        """Return the prompts of the call number ``seed``: as many as a batch has, in turn."""
        items = (self.items[(seed + i) % len(self.items)] for i in range(self.batch))
        return [self.template.format(item) for item in items]


def _keys(keys: str) -> str:
    return EXTRACT.format(keys=keys, text="{}")


TASKS = (
    Task("sentiment", CLASSIFY.format(labels=", ".join(FIVE), text="{}"), REVIEWS, Literal[FIVE]),
    Task("topic", f"Which topic is this headline about: {', '.join(TOPICS)}?\n\nHeadline: {{}}", ITEMS["topic"], Literal[TOPICS]),
    Task("letter", "{}\n\nAnswer with the letter alone.", ITEMS["letter"], Literal["A", "B", "C", "D"]),
    Task("city", f"Which of these cities fits best: {', '.join(CITIES)}?\n\nWish: {{}}", ITEMS["city"], Literal[CITIES]),
    Task("rating", "Rate {} from 0 to 100. Answer with the number alone.", ITEMS["works"], outlines.types.regex(PERCENT)),
    Task("date", "What is the date of {}? Answer as YYYY-MM-DD.", ITEMS["date"], datetime.date),
    Task(
        "phone", "Invent a phone number for {}, like (212) 555-0123. Answer with the number alone.", ITEMS["phone"],
        outlines.types.regex(r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}"),
    ),
    Task("e-mail", "Invent the e-mail address of {}. Answer with the address alone.", ITEMS["e-mail"], outlines.types.email),
    Task("SQL", "Write a query in SQL: {}. Answer with the query alone.", ITEMS["SQL"], outlines.types.CFG(SQL)),
    Task(
        "tool call",
        'Answer the request with one call of a tool, as JSON: {{"name": "get_weather", "arguments": {{"city": ..., "unit": ...}}}} '
        'or {{"name": "web_search", "arguments": {{"query": ...}}}}.\n\nRequest: {}',
        ITEMS["tool call"], WeatherCall | SearchCall, 96,
    ),
    Task("record, 3 fields", _keys(RECORDS["person"][1]), PEOPLE, Person, 96),
    Task(
        "record, 6 fields",
        _keys("title, author, published (YYYY-MM-DD), language, topics (a list) and pages"),
        ITEMS["record, 6 fields"], Article, 192,
    ),
    Task(
        "late verdict", "Should the editor accept a text about {}? Answer as JSON with the keys reason and verdict "
        "(accept or reject).", ITEMS["works"], Judgement, 128,
    ),
    Task("banned words", "Write one sentence about {}.", ITEMS["works"], None, 40, {"banned_phrases": BANNED}),
    Task("16 labels", CLASSIFY.format(labels=", ".join(FIVE), text="{}"), REVIEWS, Literal[FIVE], batch=16),
)  # fmt: skip


def chosen(only: str) -> list[Task]:
    """Return the tasks of these names, which are separated by semicolons; all by default."""
    known = {task.name: task for task in TASKS}
    names = [name.strip() for name in only.split(";") if name.strip()] or list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"Give some of {'; '.join(known)}, separated by semicolons. There is no {'; '.join(unknown)}.")
    return [known[name] for name in names]
