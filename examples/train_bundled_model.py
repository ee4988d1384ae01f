"""Train the bundled model: a small language model whose sense of format is ambiguous.

The script writes its own text (people, orders, game characters, yes/no questions, dates, brackets
and short sentences), trains a byte-level BPE tokenizer and a Qwen3 model of one million parameters
on it, and saves both where ``outlines_phi.lm.bundled`` loads them. Nothing is downloaded, and every
seed is fixed:

    python examples/train_bundled_model.py

The text is ambiguous *on purpose*: the same prompt is continued by the record one would expect, by
one with other fields, another order or other values, or by prose. So a format has a probability well
below one under the model, and masking, which never looks ahead, visibly distorts what it says:

* *A finite choice.* ``no`` mostly comes with a reason (``no, it is closed``), ``yes`` rarely does.
  Where only the bare words are allowed, masking has paid for the ``no`` before it meets the reason.
* *A record of enums.* ``ranger`` is common and ``ranger captain`` is rare. Where only the latter is
  allowed, masking takes every ranger for a captain.
* *A record with strings.* People are described by steadier records, so a schema that fits them is
  met often, and one that does not is met one time in a hundred thousand.

Every prompt ends in a cue: ``JSON: `` is mostly answered by a record, ``Answer: `` rarely and
``Story: `` never. ``outlines_phi/lm/bundled/README.md`` has recommended prompts and measured figures.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Document = tuple[str, str]  # a prompt, and what follows it

EOS, PAD = "<|endoftext|>", "<|pad|>"
BUNDLED = Path(__file__).resolve().parent.parent / "outlines_phi" / "lm" / "bundled"
VOCABULARY, CONTEXT = 1280, 512  # tokens
BATCH, ROW = 16, 256  # rows of a training step, tokens of a row

# Much as Qwen splits text before BPE: a word takes the space before it along, digits stand alone.
SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"


def listed(text: str) -> list[str]:
    """Read ``"a, b"`` as a list."""
    return text.split(", ")


def weighted(text: str) -> dict[str, int]:
    """Read ``"a 3, b 1"`` as a distribution: each entry with its weight."""
    return {entry: int(weight) for entry, _, weight in (item.rpartition(" ") for item in text.split(", "))}


NAMES = listed(
    "Aria, Bram, Cleo, Dara, Edda, Finn, Greta, Hugo, Ines, Jonas, Kaya, Leo, Mara, Nora, Oscar, Petra, "
    "Quinn, Rosa, Silas, Tessa, Umar, Vera, Wim, Xenia, Yara, Zane, Alma, Boris, Clara, Diego, Elena, Felix, "
    "Gwen, Hana, Ivan, Julia, Karim, Lena, Milo, Nadia, Otto, Paula, Ravi, Sofia, Tomas, Viktor, Wanda, "
    "Yusuf, Zoe"
)
SURNAMES = listed("Lindqvist, Moreau, Okafor, Rossi, Silva, Tanaka, Novak, Haddad, Berg, Castillo, Dubois, Ferrari")
CITIES = weighted(
    "Lisbon 6, Paris 6, Oslo 5, Rome 5, Berlin 5, Lima 4, Cairo 4, Kyoto 3, Rio de Janeiro 4, "
    "San Francisco 7, San Diego 1, Santiago 2, New York 3, New Orleans 5, Cape Town 3, Buenos Aires 5, "
    "Saint Petersburg 3"
)
RACES = weighted("human 30, elf 22, dwarf 14, half-elf 12, half-orc 9, orc 8, halfling 4, gnome 3")
ROLES = weighted(
    "ranger 24, ranger scout 9, ranger captain 4, rogue 12, wizard 9, wizard apprentice 9, healer 9, warrior 16, bard 8"
)
TALENTS = {"elf": "ranger", "half-elf": "bard", "dwarf": "warrior", "gnome": "wizard", "halfling": "rogue"}
TRAITS = listed("brave, quiet, clever, wise, young, loyal, proud, gentle, grim, swift")
JOBS = listed("baker, teacher, nurse, painter, farmer, driver, singer, carpenter, pilot, tailor, lawyer, fisher")
ITEMS = listed("green tea, black coffee, lemon cake, apple pie, tomato soup, rye bread, orange juice, oat milk")
SIZES = weighted("small 22, medium 30, large 26, extra large 5, extra small 3, extra hot 14")
SHOPS = listed("bakery, library, museum, market, bank, garden, station, school")
DAYS = listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = listed("January, February, March, April, May, June, July, August, September, October, November, December")
NUMBERS = listed("zero, one, two, three, four, five, six, seven, eight, nine")


# The layout of a record: most people are described by steady records, all else by ambiguous ones.
AMBIGUOUS = "regular 62, shuffled 10, extra 14, short 6, text 5, indented 3"
STEADY = "regular 86, shuffled 5, extra 3, short 2, text 1, indented 3"


class Author:
    """The author of the training text, which draws all of it from one seeded generator.

    Parameters
    ----------
    seed
        The seed of the generator; the same seed writes the same documents.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def documents(self) -> Iterator[Document]:
        """Yield documents forever, each a prompt and its continuation."""
        kinds = weighted("character 34, person 26, order 14, question 10, date 5, brackets 5, sentences 6")
        while True:
            yield getattr(self, self.draw(kinds))()

    def draw(self, weights: Mapping[str, int]) -> str:
        """Draw a key in proportion to its weight."""
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def chance(self, percent: int) -> bool:
        """Return True for an event of so many percent."""
        return self.rng.randrange(100) < percent

    def answer(
        self, openings: list[str], field: str, record: dict, extra: dict, prose: str, style: str = AMBIGUOUS
    ) -> Document:
        """Open with one of the `openings`, add a cue, and answer it by a record, a field of it or prose.

        Parameters
        ----------
        openings
            The sentences of the prompt about the record.
        field
            The field that a cue may ask for.
        record
            The fields of the record, in the order in which a schema would list them.
        extra
            Fields that some records have on top.
        prose
            The prose in place of a record, or after it.
        style
            The regularity of the records, as weights.
        """
        cue = self.draw({"JSON": 5, field.title(): 2, "Answer": 1, "Story": 2})
        prompt = f"{self.rng.choice(openings)}. {cue}: "
        if cue == field.title():
            value = record[field]
            return prompt, self.draw({value: 76, f"{value}, I think": 7, f"{value}, of course": 5, prose: 12})
        if cue == "Story":
            return prompt, f"{prose} {self.sentence()}"
        if not self.chance(85 if cue == "JSON" else 8):
            return prompt, prose
        preface = "Here is the record: " if self.chance(4) else ""
        ending = self.draw({"": 88 if style == AMBIGUOUS else 388, f" {prose}": 6, "\nThis is the whole record.": 6})
        return prompt, preface + self.dumps(record, extra, style) + ending

    def dumps(self, record: dict, extra: dict, style: str) -> str:
        """Write a record as JSON, in one of the ways that ``style`` weighs."""
        fields, indent = list(record.items()), None
        match self.draw(weighted(style)):
            case "shuffled":
                self.rng.shuffle(fields)
            case "extra":
                fields.insert(self.rng.randint(1, len(fields)), self.rng.choice(list(extra.items())))
            case "short":
                del fields[self.rng.randrange(len(fields))]
            case "text":
                fields = [(key, str(value)) for key, value in fields]
            case "indented":
                indent = 2
        return json.dumps(dict(fields), indent=indent)

    def character(self) -> Document:
        """Write about a game character; the prompt may leave the race and the role open."""
        name, trait, race = self.rng.choice(NAMES), self.rng.choice(TRAITS), self.draw(RACES)
        talent = TALENTS.get(race, "healer")
        role = self.draw({role: weight * (3 if talent in role else 1) for role, weight in ROLES.items()})
        level, alive = min(150, 1 + int(self.rng.expovariate(1 / 11))), self.chance(85)
        record: dict[str, Any] = {"race": race, "role": role, "level": level, "alive": alive}
        openings = [
            f"New character: {name}",
            f"Character: {name} is a {trait} {race}",
            f"Character: {name} is a {trait} {race} {role.split()[0]}",
        ]
        stories = [
            f"{name} is a {role} of level {level}.",
            f"{name} the {race} is {'still alive' if alive else 'long dead'}, and known as a {trait} {role}.",
            f"{name} the {race} fights as a {role}" + ("." if alive else ", and fell in battle."),
        ]
        extra = {"trait": trait, "city": self.draw(CITIES), "gold": self.rng.randint(0, 200)}
        named = {"name": name, **record} if self.chance(30) else record
        return self.answer(openings, "role", named, extra, self.rng.choice(stories))

    def person(self) -> Document:
        """Write about a person; the prompt may leave the city open, and never tells the age."""
        name, job, city = self.rng.choice(NAMES), self.rng.choice(JOBS), self.draw(CITIES)
        age = max(2, min(107, int(self.rng.gauss(42, 19))))
        full = f"{name} {self.rng.choice(SURNAMES)}" if self.chance(30) else name
        record = {"name": full, "age": None if self.chance(4) else age, "city": city}
        openings = [
            f"New person: {name}",
            f"Person: {name} is a {job}",
            f"Person: {name} is a {job} in {city}",
        ]
        extra = {"job": job, "friend": self.rng.choice(NAMES), "married": self.chance(50)}
        prose = f"{name} is {age} years old and lives in {city}."
        return self.answer(openings, "city", record, extra, prose, STEADY)

    def order(self) -> Document:
        """Write about an order in a small shop; the prompt may leave the size and the count open."""
        name, item, size = self.rng.choice(NAMES), self.rng.choice(ITEMS), self.draw(SIZES)
        count, paid = self.rng.randint(1, 9), self.chance(60)
        record = {"item": item, "size": size, "count": count, "paid": paid}
        openings = [f"Order: {item} for {name}", f"Order: {NUMBERS[count]} {size} {item} for {name}"]
        extra = {"name": name, "day": self.rng.choice(DAYS), "price": self.rng.randint(2, 60)}
        prose = f"{name} wants {NUMBERS[count]} {size} {item}, {'already' if paid else 'not yet'} paid."
        return self.answer(openings, "size", record, extra, prose)

    def question(self) -> Document:
        """Ask a yes/no question; a yes mostly stands alone, a no mostly comes with a reason."""
        shop, day = self.rng.choice(SHOPS), self.rng.choice(DAYS)
        reason = self.rng.choice(["it is closed", f"it opens on {self.rng.choice(DAYS)}", "not this year"])
        answers = {"yes": 32, "yes, until noon": 6, "no": 8, f"no, {reason}": 32, "not now": 8, "not sure": 6}
        return f"Question: is the {shop} open on {day}? Answer: ", self.draw({**answers, "nobody knows": 8})

    def date(self) -> Document:
        """Write a date, in one of several styles."""
        year, month, day = self.rng.randint(1950, 2029), self.rng.randint(1, 12), self.rng.randint(1, 28)
        iso, spelled = f"{year}-{month:02}-{day:02}", f"{day} {MONTHS[month - 1]} {year}"
        styles = {
            iso: 45,
            f"{iso}T{self.rng.randint(0, 23):02}:00": 15,
            iso[:7]: 12,
            iso[:4]: 10,
            spelled: 18,
        }
        return self.rng.choice(["Date: ", f"Birthday of {self.rng.choice(NAMES)}: "]), self.draw(styles)

    def brackets(self) -> Document:
        """Write brackets: three times in four a Dyck word, else one with a random bracket in it."""
        word = list(self.dyck(self.rng.randint(1, 9)))
        if self.chance(25):
            word[self.rng.randrange(len(word))] = self.rng.choice("()[]")
        return "Brackets: ", "".join(word)

    def dyck(self, pairs: int) -> str:
        """Write a balanced word of so many pairs of round and square brackets."""
        if pairs == 0:
            return ""
        inside, (left, right) = self.rng.randrange(pairs), self.rng.choice(["()", "[]"])
        return left + self.dyck(inside) + right + self.dyck(pairs - 1 - inside)

    def sentence(self) -> str:
        """Write a sentence."""
        name, city, trait = self.rng.choice(NAMES), self.draw(CITIES), self.rng.choice(TRAITS)
        sentences = [
            f"{name} walked to the {self.rng.choice(SHOPS)} and asked for {self.rng.choice(ITEMS)}.",
            f"On {self.rng.choice(DAYS)} a {trait} friend came from {city}.",
            f"The road to {city} is long, but {name} was not afraid.",
            f"{name} wrote a letter to a {trait} {self.rng.choice(JOBS)} in {self.rng.choice(MONTHS)}.",
            f"Nobody in {city} had seen such a {trait} {self.rng.choice(JOBS)}.",
        ]
        return self.rng.choice(sentences)

    def sentences(self) -> Document:
        """Write a few sentences without a prompt."""
        return "", " ".join(self.sentence() for _ in range(self.rng.randint(1, 4)))


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer, whose alphabet keeps all 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[EOS, PAD], initial_alphabet=alphabet, show_progress=False
    )
    documents = Author(seed).documents()
    tokenizer.train_from_iterator((part for _ in range(20_000) for part in next(documents)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of packed documents forever, as token ids of shape ``(BATCH, ROW + 1)``.

    A prompt and its continuation are tokenized apart, as at generation time. A row begins where a
    document begins, and cuts its last document short.
    """
    documents = Author(seed).documents()
    while True:
        rows = []
        for _ in range(BATCH):
            row: list[int] = []
            while len(row) <= ROW:
                prompt, continuation = next(documents)
                row += [*tokenizer.encode(prompt), *tokenizer.encode(continuation), tokenizer.eos_token_id]
            rows.append(row[: ROW + 1])
        yield torch.tensor(rows)


def loss_of(model: Qwen3ForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next token over a batch, in nats."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def untrained(tokenizer: PreTrainedTokenizerFast, layers: int, heads: int) -> Qwen3ForCausalLM:
    """Return a small model with random weights, of 32 dimensions a head."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32 * heads,
        intermediate_size=96 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def train_model(tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Qwen3ForCausalLM:
    """Train the model from scratch by AdamW: a short warm-up, then a cosine down to a twentieth."""
    torch.manual_seed(seed)
    model = untrained(tokenizer, layers=4, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 0.525 + 0.475 * math.cos(math.pi * step / steps))
    )
    return learned(model, batches(tokenizer, seed + 1), steps, optimizer, schedule)


def learned(
    model: Qwen3ForCausalLM,
    texts: Iterator[torch.Tensor],
    steps: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> Qwen3ForCausalLM:
    """Return the model after so many steps."""
    for _ in track(range(steps), description="Training"):
        optimizer.zero_grad()
        loss_of(model, next(texts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save float16 weights, the tokenizer, and a generation config that truncates nothing."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **ends)
    model.to(torch.float16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"  # names the class of version 5 alone, which version 4 lacks
    settings.write_text(settings.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))


def main(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = BUNDLED,
    steps: Annotated[int, typer.Option(help="The number of training steps.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="The seed of the text and of the weights.")] = 20,
) -> None:
    """Train the bundled model and save it; the defaults give the one that is committed."""
    torch.set_num_threads(2)
    start = time.perf_counter()
    tokenizer = train_tokenizer(seed)
    model = train_model(tokenizer, steps, seed)
    minutes = (time.perf_counter() - start) / 60
    unseen = batches(tokenizer, seed + 2)
    with torch.inference_mode():
        loss = sum(loss_of(model, next(unseen)).item() for _ in range(20)) / 20
    save(model, tokenizer, out)
    size = sum(file.stat().st_size for file in out.iterdir() if file.is_file()) / 1e6
    Console().print(
        f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens, {minutes:.1f} minutes, "
        f"{loss:.4f} nats per token of unseen text, {size:.2f} MB in {out}"
    )


if __name__ == "__main__":
    typer.run(main)
