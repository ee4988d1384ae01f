"""A tactic that is banned, though the model writes hardly anything else, and innocent words that begin like it.

A theorem prover is to find proofs without ``linarith``, which a made-up model of one step writes with a probability of
1 - 1e-10, in four spellings by tokens. What it would write instead is known here by construction: mostly ``ring``, sometimes
``linear_combination``. Bans of tokens, or of the last token of a phrase, end in the words that begin like the phrase, because
the model has begun it when the ban bites. A look-ahead goes back to before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import outlines_phi

PROMPT = "example : by "
BANNED = "linarith"
RARE = 1e-10
"""Probability of all proofs without it."""

END = "<end>"
STEPS: dict[str, dict[str, float]] = {
    "Ġ": {"linarith": 0.5, "lin": 0.3, "l": 0.1, "li": 0.1, "ring": 0.6 * RARE, "nlin": 0.1 * RARE},
    "lin": {"arith": 1.0, "ear_combination": RARE},
    "l": {"inar": 1.0},
    "li": {"narith": 1.0},
    "inar": {"ith": 1.0},
    "nlin": {"arith": 1.0 - RARE, "ear_combination": RARE},
}
"""The odds of the next token after a token; after any other one, the end."""


def prover() -> tuple[Any, Any]:
    """Return a Hugging Face model with the distribution of :data:`STEPS`, and its tokenizer."""
    pieces = dict.fromkeys(piece for after in STEPS.values() for piece in after)
    names = [*dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces]), END]
    ids = {name: i for i, name in enumerate(names)}
    backend = Tokenizer(models.BPE({name: i for name, i in ids.items() if name != END}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)

    p = torch.full((len(names), len(names)), 1e-30)
    p[:, ids[END]] = 1.0
    for before, after in STEPS.items():
        p[ids[before], ids[END]] = 1e-20
        for name, share in after.items():
            p[ids[before], ids[name]] = share
    config = GPT2Config(
        vocab_size=len(names), n_embd=len(names), n_layer=1, n_head=1, n_positions=64, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=ids[END],
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "c_proj" in name or "wpe" in name:
                weights.zero_()  # nothing but the last token counts
        model.transformer.wte.weight.copy_(torch.eye(len(names)))
        model.transformer.ln_f.bias.fill_(1.0)  # the rows of hidden states sum to zero else, and are no basis
        hidden = model.transformer(torch.arange(len(names))[:, None]).last_hidden_state[:, 0]
        model.lm_head.weight.copy_(torch.linalg.solve(hidden.double(), p.double().log()).T)
    return model, tokenizer


def main(n: int = 500) -> None:
    """Draw ``n`` proofs in each way."""
    hf_model, tokenizer = prover()
    inputs = tokenizer([PROMPT], return_tensors="pt")
    length = inputs["input_ids"].shape[1]

    def hosted(**options: Any) -> list[str]:
        torch.manual_seed(1)
        common = {"do_sample": True, "top_k": 0, "max_new_tokens": 8, "num_return_sequences": n}
        rows = hf_model.generate(**inputs, **common, **options)[:, length:]
        return tokenizer.batch_decode(rows, skip_special_tokens=True)

    model = outlines_phi.from_transformers(hf_model, tokenizer)
    generator = outlines_phi.Generator(model, None, banned_phrases=[BANNED])
    ahead = generator.sample(PROMPT, n, max_new_tokens=8, seed=1)
    one_spelling = [tokenizer.convert_tokens_to_ids(["linarith"]), tokenizer.convert_tokens_to_ids(["lin", "arith"])]
    drawn = {
        "no ban": hosted(),
        "bad_words_ids": hosted(bad_words_ids=one_spelling),
        "mask": hosted(logits_processor=[outlines_phi.ban(hf_model, [BANNED], tokenizer=tokenizer)]),
        "look-ahead": ahead.texts,
        "exact": generator.sample(PROMPT, n, phi="exact", max_new_tokens=8, seed=1).texts,
    }
    innocent = {"ring": 0.6, "linear_combination": 0.3}
    total = sum(innocent.values())
    truth = {text: p / total for text, p in innocent.items()}
    texts = [*truth, *sorted({text for found in drawn.values() for text in found} - truth.keys())]
    print(f"{'':20}{'truth':>10}" + "".join(f"{name:>15}" for name in drawn))
    for text in texts:
        shares = "".join(f"{Counter(found)[text] / n:15.1%}" for found in drawn.values())
        print(f"{text:20}{truth.get(text, 0.0):10.1%}{shares}")
    print(f"\n{ahead}")
    print("attempts that came upon a phrase:", dict(ahead.rejections))


if __name__ == "__main__":
    main()
