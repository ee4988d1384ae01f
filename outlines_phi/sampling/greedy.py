"""Greedy decoding of free text: the line that a model writes by itself."""

from __future__ import annotations

from ..numerics.transfers import Exchange
from .sampler import Request


def greedy_lines(request: Request, most: int) -> list[str]:
    """Return the line that the likeliest token at every step writes after each prompt, of at most ``most`` tokens.

    It ends with the end of sequence or the first newline after a character, and knows nothing of the table of ``request``.
    """
    lm, trees = request.lm, request.trees()
    written: list[list[int]] = [[] for _ in request.prompts]
    rows, evaluation = list(range(len(written))), trees.roots()
    while True:
        exchange = Exchange(evaluation.rows)
        contexts = [(*request.prompts[row], *written[row]) for row in rows]
        log_p = request.settings.log_p(exchange.rows(range(len(rows)))(), lm.vocabulary, contexts)
        (best,) = exchange.read(log_p.argmax(-1))
        standing: dict[int, int] = {}
        for row, node, token, context in zip(rows, evaluation.nodes, best.tolist(), contexts, strict=True):
            if token in lm.vocabulary.eos_ids:
                continue
            written[row].append(token)
            fits = len(written[row]) < most and (lm.max_length is None or len(context) + 1 < lm.max_length)
            if fits and b"\n" not in lm.vocabulary.decode(written[row]).lstrip():
                standing[row] = node
        if not standing:
            break
        rows = list(standing)
        evaluation = trees.extend(list(standing.values()), [written[row][-1] for row in rows])
    return [lm.vocabulary.decode(ids).decode(errors="replace").strip().partition("\n")[0] for ids in written]
