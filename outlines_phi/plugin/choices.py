"""Keywords: what a correction makes of those of transformers, which ones a door does not take, and what is meant by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, final

from transformers import GenerationConfig

from ..errors import UnsupportedError
from ..lm.model import Progress
from ..numerics.checks import is_count
from ..phi.constraint import TextConstraint
from ..sampling.ancestral import SMC
from ..sampling.phi_options import Effort
from ..settings import SamplingSettings
from .types.output_types import is_marker

END = "give stop=['...'], or stop_strings=['...'], which stay in the text, whatever tokens spell them"
"""Remedy in place of a stop of other libraries."""

BUDGET = "give max_new_tokens="


class Role(Enum):
    """Role of a field of the model's own configuration under a correction."""

    HOLDS = "a part of the distribution, unless the call says otherwise"
    TRUNCATES = "truncation, which applies only where the call asks for it"
    REFUSED = "it changes the distribution in a way that is not offered, so draws are refused until it is neutral"
    LOOP = "it is about Hugging Face's own loop, and does not apply"


class Field(NamedTuple):
    """A row of the table: the role of a field in the configuration, and what to do in place of giving it to a call.

    ``neutral`` are the values that change nothing, which a call may always give; the last one is what messages name.
    """

    role: Role
    neutral: tuple[Any, ...] = (None,)
    instead: str = ""


NO_DISTRIBUTION = "it changes no distribution, so leave it out"
SAMPLED = "draws are sampled, one by one, so leave it out"
CUT = "give top_p= or min_p= to truncate"
DRAFTED = "give draft= for tokens that are written ahead"
RETURNED = (
    "sample(tokens=True, top=5) of outlines_phi.Generator(model, T) returns what is known of draws, token by token"
)

_FLAG = (None, False)
_LIST: tuple[Any, ...] = (None, [])

_ASSISTANT = (
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "speculation_type", "target_lookbehind"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "assistant_ensemble_weight"),
)
_CACHES_AND_IDS = (
    *("pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version", "compile_config"),
    *("cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "continuous_batching_config"),
)
_OUTPUTS = ("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate")

FIELDS: dict[str, Field] = {
    # the distribution
    "temperature": Field(Role.HOLDS),
    "repetition_penalty": Field(Role.HOLDS),
    "eos_token_id": Field(Role.HOLDS, instead="set it in model.generation_config before the model is wrapped"),
    # truncation
    "top_k": Field(Role.TRUNCATES, (None, 0)),
    "top_p": Field(Role.TRUNCATES, (None, 1.0)),
    "min_p": Field(Role.TRUNCATES, (None, 0.0)),
    "top_h": Field(Role.TRUNCATES, instead=CUT),
    "typical_p": Field(Role.TRUNCATES, (None, 1.0), CUT),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), Field(Role.TRUNCATES, (None, 0.0), CUT)),
    # other distributions
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), Field(Role.REFUSED, (None, 0))),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), Field(Role.REFUSED, (None, 1.0))),
    **dict.fromkeys(
        ("min_length", "min_new_tokens"), Field(Role.REFUSED, (None, 0), "write the least length into the format")
    ),
    "bad_words_ids": Field(Role.REFUSED, _LIST, "ban texts in all their spellings with banned_phrases=['...']"),
    "force_words_ids": Field(Role.REFUSED, _LIST, "write the words into the format"),
    "constraints": Field(Role.REFUSED, _LIST, "write them into the format, or give constraint="),
    "sequence_bias": Field(Role.REFUSED, (None, {}, [])),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), Field(Role.REFUSED, _LIST)),
    **dict.fromkeys(
        ("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), Field(Role.REFUSED)
    ),
    **dict.fromkeys(("watermarking_config", "dola_layers"), Field(Role.REFUSED)),
    "token_healing": Field(Role.REFUSED, _FLAG),
    "stop_strings": Field(Role.REFUSED, ([], None), "give them to the call"),
    "max_time": Field(Role.REFUSED, instead="bound the work with phi=ExactPhi(effort=Effort(...))"),
    # numbers and lengths
    "num_return_sequences": Field(Role.LOOP, (None, 1)),
    "max_new_tokens": Field(Role.LOOP),
    "max_length": Field(Role.LOOP, instead=f"{BUDGET}, which does not count the prompt"),
    # search
    "do_sample": Field(Role.LOOP),
    "num_beams": Field(Role.LOOP, (None, 1), "beam search has no sampling distribution to correct, so leave it out"),
    "num_beam_groups": Field(Role.LOOP, (None, 1), SAMPLED),
    "length_penalty": Field(Role.LOOP, (None, 1.0), SAMPLED),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), Field(Role.LOOP, (None, 0.0), SAMPLED)),
    **dict.fromkeys(("early_stopping", "low_memory"), Field(Role.LOOP, _FLAG, SAMPLED)),
    # tokens written ahead; where one of these biases the loop's draws, it does not bias ours
    **dict.fromkeys(("use_mtp", "is_assistant"), Field(Role.LOOP, _FLAG, DRAFTED)),
    **dict.fromkeys(_ASSISTANT, Field(Role.LOOP, instead=DRAFTED)),
    **dict.fromkeys(
        ("prompt_lookup_num_tokens", "max_matching_ngram_size"), Field(Role.LOOP, instead="give draft='prompt_lookup'")
    ),
    # options that no distribution depends on; NaN in the logits is a ModelError here, and draws have a cache of their own
    **dict.fromkeys(
        ("renormalize_logits", "remove_invalid_values", "disable_compile"), Field(Role.LOOP, _FLAG, NO_DISTRIBUTION)
    ),
    "use_cache": Field(Role.LOOP, (None, True), NO_DISTRIBUTION),
    **dict.fromkeys(_CACHES_AND_IDS, Field(Role.LOOP, instead=NO_DISTRIBUTION)),
    # outputs of the loop beside ids
    **dict.fromkeys(_OUTPUTS, Field(Role.LOOP, _FLAG, RETURNED)),
}
"""Every field that transformers 5.23 has; what each means there is in its documentation."""

INSTALLED = [name for name in vars(GenerationConfig()) if not name.startswith("_")]
"""The fields that the installed transformers has."""

DEFAULTS: dict[str, Any] = {
    **vars(GenerationConfig()),
    **getattr(GenerationConfig, "_get_default_generation_params", dict)(),
}
"""The default of each field where nobody says: transformers 5.23 fills them in at the call."""


def rows(installed: Iterable[str]) -> dict[str, Field]:
    """Return a row for every field: one that the table does not know is refused, as it may change the distribution."""
    return {name: Field(Role.REFUSED, (DEFAULTS.get(name), None)) for name in installed} | FIELDS


ROWS = rows(INSTALLED)

TRUNCATION = [name for name, field in FIELDS.items() if field.role is Role.TRUNCATES]  # The fields that truncate


def check_config(config: GenerationConfig | None, keywords: Mapping[str, Any]) -> None:
    """Refuse a generation config that changes the distribution in a way that is not offered, unless ``keywords`` of the call
    undo it.
    """
    for name, field in ROWS.items():
        value = getattr(config, name, None)
        if field.role is Role.REFUSED and name not in keywords and value not in field.neutral:
            offered = f" ({field.instead})" if field.instead else ""
            raise UnsupportedError(
                f"Give {name}={field.neutral[-1]!r} to the call to draw without it, or phi=None: {name}={value!r:.80} in the "
                f"model's generation_config changes the model's distribution, which is not offered under phi={offered}."
            )


def held(name: str, given: Any, config: GenerationConfig | None) -> Any:
    """Return the temperature or repetition penalty of a call: what it gave, else that of the generation config, else 1."""
    own = getattr(config, name, None)
    if given is not None or own is None:
        return 1.0 if given is None else given
    if not isinstance(own, Real) or own <= 0:
        raise UnsupportedError(
            f"Give {name}=1.0 to the call (and do_sample=False for the most probable output): {name}={own!r} in the model's "
            "generation_config defines no distribution to draw from."
        )
    return own


PARTICLES = "give sampler=SMC(particles=..., resample=...)"

BANNED = "give banned_phrases=['...'], whatever tokens spell them"

CERTIFIED = "give phi=ExactPhi(tolerance=..., confidence=...)"

_CLOSE = 0.8
"""The least similarity of a mistyped keyword to the one that is meant: nearer than any option of transformers is."""

TOOLS = (
    "give outlines_phi.Tools(tools, choice=...) as output type, and write the tools into the prompt, as "
    "tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) does"
)

OF_ADAPTER = "outlines_phi.from_vllm_offline(llm, lora_request=...)"
OWN_LOOP = "give banned_phrases= or constraint= for a rule of your own, or keep the loop with phi=None"

MEANT: dict[str, str] = {
    **{
        name: field.instead or "it changes the distribution in a way that is not offered, so leave it out"
        for name, field in FIELDS.items()
        if field.instead or field.role is Role.REFUSED
    },
    "max_tokens": BUDGET,
    "n": "give num_return_sequences= in a call, or the argument n of sample()",
    "samples": "give num_return_sequences= in a call, or the argument n of sample()",
    **dict.fromkeys(("stop_at", "stop_words", "stop_sequences", "stopping_criteria"), END),
    "stop_token_ids": "give stop=[outlines_phi.Special('<[5]>')] for a special token",
    "include_stop_str_in_output": "give stop_strings= for strings that stay in the text, else stop=",
    "logits_processor": OWN_LOOP,
    "prefix_allowed_tokens_fn": OWN_LOOP,
    "generation_config": "give its fields as keywords, such as temperature=",
    "assistant_model": "give draft=, a smaller model with the same tokenizer",
    "streamer": "call stream(), and iterate over it",
    "lora_request": f"make a model of the adapter: {OF_ADAPTER}",
    **dict.fromkeys(("tools", "tool_choice"), TOOLS),
    **dict.fromkeys(("ban", "banned", "banned_strings", "banned_words", "bad_words", "blacklist"), BANNED),
}
"""The remedies for keywords of other libraries."""

MEANT_BY_DRAWS = {
    **MEANT,
    "particles": PARTICLES,
    "resample": PARTICLES,
    "tolerance": CERTIFIED,
    "confidence": CERTIFIED,
}
"""The same in calls that draw, and for options that live in objects."""


TOKENIZATIONS = ("any", "canonical")  # Which tokenizations of a text by tokens belong to the language

ENDS = ("text", "open")
"""The events that draws are conditioned on: the text is a member; or it begins with one, whatever follows."""

MOST_TOP = 100
"""The most alternatives of each token: every token of every draw keeps them."""

Told: TypeAlias = Callable[[Progress], object] | bool | None  # What `progress=` may be


class Option(NamedTuple):
    """A row of the table of options: the values that a call may give, and what errors say that was ``expected``.

    ``idle`` are the values that ask for nothing, which every door takes; the last one holds where a call does not say. ``names``
    are the texts that it may be. ``kind`` is the type, and ``said`` the sentence, of an option of the command line.
    """

    holds: Callable[[Any], bool] = lambda given: True
    expected: str = ""
    idle: tuple[Any, ...] = (None,)
    names: tuple[str, ...] = ()
    kind: Any = None
    said: str = ""


def _is_function(given: object) -> bool:
    return callable(given) and not isinstance(given, type)


STRINGS = "a string of at least one character, outlines_phi.Special('...'), or a list of such"


def _are_strings(given: object) -> bool:
    return all(map(is_marker, given if isinstance(given, (list, tuple)) else [given]))


_OF_CALLS: dict[str, Option] = {
    # Settings, whose values :class:`SamplingSettings` checks itself
    "temperature": Option(kind=float, said="Divides the logits; by default the model's own, else 1."),
    "top_k": Option(kind=int, said="Truncation to the k likeliest tokens; by default none."),
    "top_p": Option(kind=float, said="Truncation to a probability mass; by default none."),
    "min_p": Option(kind=float, said="Truncation relative to the likeliest token; by default none."),
    "repetition_penalty": Option(kind=float, said="As in transformers; by default the model's own, else 1."),
    "max_new_tokens": Option(kind=int, said="Most tokens of an output, its end included; part of the distribution."),
    "seed": Option(kind=int, said="Same seed, same draws; by default a random one."),
    "num_return_sequences": Option(lambda given: is_count(given, 1), "a whole number of at least 1"),
    "do_sample": Option(idle=(True, None)),
    "tokenization": Option(
        TOKENIZATIONS.__contains__,
        "'any' or 'canonical'",
        (None, "any"),
        TOKENIZATIONS,
        str,
        "Tokenizations of a text that count; by default any.",
    ),
    "constraint": Option(
        lambda given: isinstance(given, TextConstraint) or _is_function(given),
        "a function of a text that returns True or False, TextConstraint(prefix=..., complete=...) of outlines_phi, or None",
    ),
    "sampler": Option(lambda given: isinstance(given, SMC), "SMC(particles=50, ...) of outlines_phi, or None"),
    "banned_phrases": Option(),
    "draft": Option(),
    "draft_length": Option(),
    "progress": Option(
        lambda given: isinstance(given, bool) or _is_function(given),
        "True for a bar, a function(progress) that is called after every model call, or False for nothing",
        (False, None),
    ),
    "ends": Option(
        ENDS.__contains__,
        "'text' or 'open'",
        (None, "text"),
        ENDS,
        str,
        "open: the text begins with a member and may go on.",
    ),
    "open_at": Option(kind=str, said="With --ends open: regular expression of the character after a member."),
    "stop": Option(
        _are_strings,
        STRINGS,
        ([], None),
        kind=list[str],
        said="String that ends the text before it; may be given several times.",
    ),
    "stop_strings": Option(
        _are_strings, STRINGS, ([], None), kind=list[str], said="The same, and the string stays in the text."
    ),
    "tokens": Option(
        lambda given: isinstance(given, bool),
        "True for an account of every token of a draw, or False",
        (None, False),
        kind=bool,
        said="Write an account of every token of a draw: log p, log q, the mass that the format allows, bounds of Phi.",
    ),
    "top": Option(
        lambda given: is_count(given, 1) and given <= MOST_TOP,
        f"a whole number from 1 to {MOST_TOP}",
        kind=int,
        said="With --tokens: so many of the likeliest tokens at each place, allowed or not.",
    ),
}
UNSAID = {name: option.idle[-1] for name, option in _OF_CALLS.items()}
"""The value of each keyword of a call that is not given."""

OPTIONS: dict[str, Option] = {
    **_OF_CALLS,
    "tolerance": Option(
        lambda given: isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given < 1,
        "a number in [0, 1)",
    ),
    "effort": Option(lambda given: isinstance(given, Effort), "Effort(tokens=..., seconds=...)"),
}
"""The one table of options: those of draws, then those of what searches."""

USED = tuple(_OF_CALLS)
"""The keywords that a call under a correction takes."""

COUNTED = tuple(name for name in USED if name != "num_return_sequences")
"""Those that sample() and an audit take, whose number of draws is an argument."""


def meant(name: str, given: Any) -> Any:
    """Return the value that a call means by what it gives for an option; refuse what that may not be."""
    option = OPTIONS[name]
    if given is not None and not option.holds(given):
        raise UnsupportedError(
            f"{name}={given!r:.80} was given{guessed(given, option.names, ())}; expected {option.expected}."
        )
    return option.idle[-1] if given is None else given


@final
class Misfit(NamedTuple):
    """Options that a door has no use for, and what to say of them, with ``{name}`` and ``{value}``.

    At their idle values they ask for nothing, so it takes them all the same, unless it is ``strict``.
    """

    names: tuple[str, ...]
    why: str
    strict: bool = False


_DRAWN = "Leave {name} out of {door}, which is about the conditioned distribution itself and draws nothing"
_DRAFT = ("draft", "draft_length")
_ENDS = ("ends", "open_at")
STOPS: tuple[str, ...] = ("stop", "stop_strings")
_ACCOUNTS = ("tokens", "top")
_LAW = (
    Misfit(("phi", "do_sample", "num_beams", "sampler", *_DRAFT), f"{_DRAWN}.", strict=True),
    Misfit(_ACCOUNTS, f"{_DRAWN}."),
    Misfit(("num_return_sequences",), f"{_DRAWN} (the number of members is the argument top of mode()).", strict=True),
)
UNDRAWN = ("sampler", *_DRAFT, "progress", "constraint", "tokenization", *_ENDS, *_ACCOUNTS)
"""The options of draws that no loop has a use for."""

_OF_DRAWS = Misfit(
    UNDRAWN,
    "Give phi='exact', phi='auto' or a proposal such as phi='local' beside {name}=, or leave it out: {name}= was given "
    "without phi=, and plain masking in {door} has no use for it.",
)
_MORE = "behind which the last token may write more"
_RULE = "Write the rule into the format, or leave {door} out:"
_STOPPED = "give phi= beside {name}=. {name}= was given without phi=, and {door} has none."
_SEED = "{why}, or give phi= beside seed=. The loop takes its randomness from there, and seed= was given without phi=."

MISFITS: dict[str, tuple[Misfit, ...]] = {
    "Hugging Face's own loop": (
        Misfit(("seed",), _SEED.replace("{why}", "Call torch.manual_seed(seed) beforehand"), strict=True),
        Misfit(("stop",), f"Give stop_strings=, which stay in the text, or {_STOPPED}"),
        _OF_DRAWS,
    ),
    "llama.cpp's own loop": (
        Misfit(("stop_strings",), f"Give stop=, which are not in the text, or {_STOPPED}"),
        _OF_DRAWS,
    ),
    "mlx-lm's own loop": (
        Misfit(("seed",), _SEED.replace("{why}", "Call mlx.core.random.seed(seed) beforehand"), strict=True),
        Misfit(STOPS, f"Write the end into the format, or {_STOPPED}"),
        _OF_DRAWS,
    ),
    "vLLM's own loop": (
        Misfit(
            (*(field.name for field in fields(SamplingSettings)), "num_return_sequences", *STOPS),
            "Give it in sampling_params=SamplingParams(...), or give phi= beside {name}=. {name}= was given without phi=, and vLLM "
            "takes its settings from there.",
        ),
        _OF_DRAWS,
    ),
    "a vLLM server's own loop": (Misfit(("stop_strings",), f"Give stop=, as the server has it, or {_STOPPED}"),),
    "a vLLM server": (
        Misfit(
            ("sampler", "draft", "constraint", "tokenization", "progress", "ends", *_ACCOUNTS),
            "Leave {name} out, {roads}. {name}= was given for draws that a server makes by itself.",
        ),
    ),
    "draws": (
        Misfit(
            ("do_sample",),
            "Leave do_sample unset to sample; the most probable member is that of generator.mode(prompt), and of a plain call with "
            "phi='exact', do_sample=False; phi=None for Hugging Face's step-by-step argmax. do_sample={value!r} was given where "
            "draws are made.",
        ),
    ),
    "sample()": (
        Misfit(
            ("num_return_sequences",),
            "Give sample() its argument n, the number of draws, not num_return_sequences.",
            strict=True,
        ),
    ),
    "a call that returns texts": (
        Misfit(
            _ACCOUNTS,
            "Give {name}= to sample() or stream() of outlines_phi.Generator(model, T), or beside return_dict_in_generate=True to "
            "custom_generate. {name}= was given to {door}, which have no room for it.",
        ),
    ),
    "do_sample=False": (
        Misfit(
            ("sampler", *_DRAFT, *_ACCOUNTS),
            "Leave one of the two out: {name}= was given with do_sample=False. It is for draws, and the most probable member is "
            "searched for, many prefixes in each model call.",
        ),
    ),
    "ends='text'": (
        Misfit(
            ("open_at",),
            "Give ends='open' and a regular expression as open_at=, or leave that out. open_at={value!r:.80} was given with "
            "{door}.",
        ),
    ),
    "ends='open'": (
        Misfit(STOPS, f"Leave one of the two out: {{door}} was given beside stop strings, {_MORE}."),
        Misfit(
            ("constraint",), f"{_RULE} constraint={{value}} was given, which sees what is written after a member too."
        ),
        Misfit(("tokenization",), f"{_RULE} tokenization={{value!r}} was given, which asks for whole texts."),
    ),
    "stop strings": (
        Misfit(("constraint",), f"Leave one of the two out: constraint={{value}} was given beside {{door}}, {_MORE}."),
        Misfit(
            ("tokenization",), f"Leave one of the two out: tokenization={{value!r}} was given beside {{door}}, {_MORE}."
        ),
    ),
    "probabilities()": _LAW,
    "mode()": _LAW,
    "fit()": _LAW,
    "an audit": (
        Misfit(
            ("tokenization", "constraint", *_ENDS, *STOPS),
            "Leave {name}= out of an audit, which is of plain masking; that knows any tokenization, whole texts and no predicates.",
        ),
        Misfit(_ACCOUNTS, "Give {name}= to sample() with phi='local': an audit hands no draws out."),
        Misfit(
            ("phi", "num_return_sequences", "sampler", *_DRAFT),
            "Leave {name}= out of an audit, which is of plain masking and draws n={n} times for each prompt.",
            strict=True,
        ),
    ),
    "a stream": (
        Misfit(
            ("progress",),
            "Leave progress out of a stream, whose pieces tell how far it has come, or call the model without streaming.",
        ),
        Misfit(("streamer",), "Iterate over the stream: streamer= was given for a stream, which has its own."),
    ),
    "a stream under a correction": (
        Misfit(
            ("do_sample",),
            "Call the model without streaming, or stream with phi=None: do_sample={value} was given for a stream with phi=. "
            "The most probable text is not known from left to right.",
        ),
    ),
}
"""By the door: the keywords of other doors that it has no use for."""


def refuse_misfits(door: str, keywords: Mapping[str, Any], **said: Any) -> None:
    """Refuse keywords that ``door`` has no use for; ``said`` is what messages tell beside."""
    for misfit in MISFITS[door]:
        for name in misfit.names:
            idle = () if misfit.strict else OPTIONS[name].idle if name in OPTIONS else (None,)
            if name in keywords and keywords[name] not in idle:
                raise UnsupportedError(misfit.why.format(name=name, value=keywords[name], door=door, **said))


def refuse_unknown(
    keywords: Mapping[str, Any], known: Sequence[str], meant: Mapping[str, str], otherwise: str = ""
) -> None:
    """Refuse keywords that are not ``known``, unless they are fields of transformers at a neutral value, which say nothing.

    ``meant`` says what to do in place of some; for others the nearest one is named.
    """
    others = sorted(keywords.keys() - set(known))
    unknown = others and [name for name in others if name not in ROWS or keywords[name] not in ROWS[name].neutral]
    if not unknown:
        return
    hints = {name: _hint(name, known, meant) for name in unknown}
    said = "; ".join(f"{name}: {hint}" if len(unknown) > 1 else hint for name, hint in hints.items() if hint)
    expected = "" if not known or all(name in meant for name in unknown) else f"; expected any of {', '.join(known)}"
    message = f"{', '.join(unknown)} cannot be used here{f' ({said})' if said else ''}{expected}."
    raise UnsupportedError(f"{message} {otherwise}".rstrip())


def refuse_of_loop(door: str, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that a host's own loop has no use for, or would get where ``phi`` or ``banned_phrases`` is meant."""
    for name in keywords:
        if MEANT.get(name) == BANNED or get_close_matches(name, ("banned_phrases",), n=1, cutoff=_CLOSE):
            raise UnsupportedError(f"{name} cannot be used here; {BANNED}.")
        if get_close_matches(name, ("phi",)):
            raise UnsupportedError(f"{name} cannot be used here; did you mean phi=?")
    refuse_misfits(door, keywords)


def guessed(given: object, names: Iterable[str], kind: type | tuple[type, ...]) -> str:
    """Return a hint at the likely meaning of a wrong value: one of ``names``, or an instance of ``kind``; empty for neither."""
    if isinstance(given, type) and issubclass(given, kind):
        return f", a class (did you mean {given.__name__}()?)"
    plain = {re.sub("[-_ ]", "", name): name for name in names}
    near = get_close_matches(re.sub("[-_ ]", "", given.lower()), plain, n=1) if isinstance(given, str) else []
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""


def _hint(name: str, known: Sequence[str], meant: Mapping[str, str]) -> str:
    """Return the remedy for an unknown keyword; empty where nothing is known of it."""
    near = get_close_matches(name, (*known, "phi"), n=1)
    return meant.get(name, f"did you mean {near[0]}=?" if near else "")
