"""Beam search over any next-token function: batched, with finished sentences leaving the batch.

    best = beam_search(next_logits, num_sentences, SearchSettings(beam=5))[sentence][0]

One step, for all open sentences at once:

    logits        of every open hypothesis (one per sentence at the first step)
    constraints   lengths, bans, prefixes, n-grams
    candidates    the 2 * beam best continuations of each sentence, so that after end tokens `beam` are still open
    finish        those among the first `beam` that end go to the sentence's pool
    open          the first `beam` that do not end are the next hypotheses
    leave         sentences that are finished (`sonde.generate.stopping`) give their place to the last ones

The result of a sentence does not depend on which others are in the batch. Corners: NaN logits cannot be chosen; a sentence of which
nothing can go on ends with what it has, perhaps an empty list; `max_len=0` allows the end token alone (under "hf": nothing, one
empty hypothesis); a beam larger than the vocabulary searches all there is; an end token at the first step is a result like any
other.

Diverse beam search (`diverse_groups`, with Hamming diversity) runs every group as a beam of its own, group after group within a step.

Shapes: B sentences still open, K hypotheses of each, T tokens so far, V vocabulary, S source tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.candidates import Candidates, best_candidates, log_probabilities
from sonde.generate.constraints import Constraints
from sonde.generate.frontier import Frontier, NextLogits
from sonde.generate.hypotheses import Hypothesis, Pool
from sonde.generate.settings import SearchSettings
from sonde.generate.stopping import is_finished, make_pool


def beam_search(
    next_logits: NextLogits,
    num_sentences: int,
    settings: SearchSettings | None = None,
    *,
    source_lengths: Sequence[int] | None = None,
    prefix_tokens: Sequence[Sequence[int]] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first.

    `source_lengths` are needed for lengths relative to the source. `prefix_tokens` are what each result must begin with: part of it,
    and scored. `prompts` stand before the result in place of the start token: not part of it, and not scored.
    """
    settings = settings or SearchSettings()
    constraints = Constraints(settings, num_sentences, source_lengths, prefix_tokens)
    tokens = starting_tokens(num_sentences, settings, prompts).to(device)
    with torch.no_grad():
        return _Search(settings, constraints, tokens).run(next_logits)


def greedy(
    next_logits: NextLogits, num_sentences: int, settings: SearchSettings | None = None
) -> list[list[Hypothesis]]:
    """Always the most likely next token: beam search with a beam of 1."""
    return beam_search(
        next_logits, num_sentences, replace(settings or SearchSettings(), beam=1, n_best=1, diverse_groups=1)
    )


def starting_tokens(num_sentences: int, settings: SearchSettings, prompts: Sequence[Sequence[int]] | None) -> Tensor:
    """What every sentence starts from, [B, 1, T]: the start token, or its prompt, padded on the left."""
    if prompts is None:
        return torch.full((num_sentences, 1, 1), settings.start_token)
    if len(prompts) != num_sentences or not all(prompts):
        raise SettingError(
            f"prompts has {len(prompts)} entries for {num_sentences} sentences, the shortest of {min(map(len, prompts), default=0)}",
            hint="give each sentence a prompt of at least one token",
        )
    width = max(map(len, prompts), default=1)
    filler = settings.start_token if settings.pad is None else settings.pad
    rows = [[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(rows, dtype=torch.long).view(num_sentences, 1, width)


def refilled(is_open: list[bool]) -> list[int]:
    """Rows that stay, the last ones in the places of those that left: as few as possible change place."""
    num_open = sum(is_open)
    movers = (row for row in range(len(is_open) - 1, -1, -1) if is_open[row])
    return [row if is_open[row] else next(movers) for row in range(num_open)]


def select_hypotheses(x: Tensor, parents: Tensor) -> Tensor:
    """`x` [B, K, ...] with hypothesis k of each sentence replaced by hypothesis `parents[b, k]`."""
    index = parents.view(*parents.shape, *[1] * (x.dim() - 2)).expand(*parents.shape, *x.shape[2:])
    return x.gather(1, index)


def _appended(history: Tensor | None, attention: Tensor) -> Tensor:
    """Attention so far [B, K, T, S] with that of the newest tokens [B, K, S] behind it."""
    newest = attention.unsqueeze(2)
    return newest if history is None else torch.cat((history, newest), dim=2)


@final
class _Search:
    """The open hypotheses of all sentences, and the pools of finished ones."""

    def __init__(self, settings: SearchSettings, constraints: Constraints, tokens: Tensor) -> None:
        self.settings = settings
        self.constraints = constraints
        self.prompt_len = tokens.shape[2]
        self.num_groups = settings.diverse_groups
        self.group_beam = settings.beam // settings.diverse_groups
        self.tokens = tokens
        # Sum of log-probabilities after each token [B, K, T], and now [B, K].
        self.sums = torch.zeros(len(tokens), 1, 0, device=tokens.device)
        self.scores = torch.zeros(len(tokens), 1, device=tokens.device)
        self.attention: Tensor | None = None
        self.pools: list[list[Pool]] = [[] for _ in range(len(tokens))]
        self.rows = list(range(len(tokens)))
        self.kept: Tensor | None = None
        self.parents: Tensor | None = None
        self.step = 0

    def run(self, next_logits: NextLogits) -> list[list[Hypothesis]]:
        if self.settings.stop == "hf":
            self._leave_at_once()
        while self.rows:
            self._take_step(next_logits)
        return [self._result(pools) for pools in self.pools]

    def _leave_at_once(self) -> None:
        nothing = Hypothesis(tokens=[], score=0.0, token_scores=[], ended=False)
        is_open = [self.constraints.max_lens[sentence] > 0 for sentence in self.rows]
        for sentence in self.rows:
            if not is_open[sentence]:
                self.pools[sentence] = [Pool(1)]
                self.pools[sentence][0].add(nothing)
        self._leave(is_open)
        self.kept = None

    def _result(self, pools: list[Pool]) -> list[Hypothesis]:
        ranked = [hypothesis for pool in pools for hypothesis in pool.ranked()]
        return sorted(ranked, key=lambda hypothesis: -hypothesis.score)[: self.settings.n_best]

    def _take_step(self, next_logits: NextLogits) -> None:
        sentences = torch.tensor(self.rows, device=self.tokens.device)
        answer = next_logits(
            Frontier(tokens=self.tokens, sentences=sentences, step=self.step, kept=self.kept, parents=self.parents)
        )
        logits, attention = answer if isinstance(answer, tuple) else (answer, None)
        log_probs = log_probabilities(logits, self.settings.temperature)
        if self.step == 0:
            self._open_pools(log_probs.shape[-1])
        self.constraints.apply(log_probs, self.tokens, self.step, self.rows)
        candidates, is_end = self._candidates(log_probs)
        if attention is not None:
            self.attention = _appended(self.attention, attention)
        self._finish(candidates, is_end)
        self._advance(candidates, is_end)
        self.step += 1
        self._close()

    def _open_pools(self, vocab_size: int) -> None:
        if self.settings.stop == "fairseq" and self.num_groups == 1:
            self.group_beam = max(1, min(self.group_beam, vocab_size - 1))
        for sentence in self.rows:
            self.pools[sentence] = [make_pool(self.settings, self.group_beam) for _ in range(self.num_groups)]

    def _candidates(self, log_probs: Tensor) -> tuple[Candidates, Tensor]:
        """The candidates [B, G * 2 * group_beam] of all groups, and which of them end."""
        width = 2 * self.group_beam
        if self.num_groups == 1:
            candidates = best_candidates(log_probs, self.scores, width)
            return candidates, candidates.tokens == self.settings.eos
        chosen = log_probs.new_zeros(len(log_probs), 1, log_probs.shape[-1])
        found = []
        for group in range(self.num_groups):
            mine = slice(None) if self.step == 0 else slice(group * self.group_beam, (group + 1) * self.group_beam)
            penalised = log_probs[:, mine] - self.settings.diversity * chosen
            one = best_candidates(penalised, self.scores[:, mine], width)
            going_on = self._first_open(one.tokens == self.settings.eos, self.group_beam)
            taken = one.tokens.gather(1, going_on)
            counted = (one.scores.gather(1, going_on) > -torch.inf).float()
            chosen.squeeze(1).scatter_add_(1, taken, counted)
            found.append(one._replace(parents=one.parents + (mine.start or 0)))
        candidates = Candidates(*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)))
        return candidates, candidates.tokens == self.settings.eos

    def _first_open(self, is_end: Tensor, num: int) -> Tensor:
        """Indices of the first `num` candidates of one group that do not end."""
        order = torch.arange(is_end.shape[1], device=is_end.device)
        return (is_end * is_end.shape[1] + order).topk(num, largest=False).indices

    def _finish(self, candidates: Candidates, is_end: Tensor) -> None:
        """Put the candidates that end, and are among the first `beam` of their group, into the pools."""
        ends = is_end.clone()
        if self.settings.stop == "hf":
            cut = [row for row, s in enumerate(self.rows) if self.step + 1 >= self.constraints.max_lens[s]]
            ends[cut] = True
        rank = torch.arange(ends.shape[1], device=ends.device) % (2 * self.group_beam)
        ends &= (rank < self.group_beam) & (candidates.scores > -torch.inf)
        length = self.step + 1
        places = ends.nonzero()
        if not len(places):
            return
        row, column = places.unbind(1)
        found = zip(
            row.tolist(),
            column.tolist(),
            candidates.scores[row, column].tolist(),
            candidates.parents[row, column].tolist(),
            candidates.tokens[row, column].tolist(),
            strict=True,
        )
        for sentence_row, place, total, parent, token in found:
            pool = self.pools[self.rows[sentence_row]][place // (2 * self.group_beam)]
            score = total / float(length**self.settings.length_penalty)
            if pool.would_take(score):
                pool.add(self._hypothesis(sentence_row, parent, token, total, score))

    def _hypothesis(self, row: int, parent: int, token: int, total: float, score: float) -> Hypothesis:
        sums = [0.0, *self.sums[row, parent].tolist(), total]
        return Hypothesis(
            tokens=[*self.tokens[row, parent, self.prompt_len :].tolist(), token],
            score=score,
            token_scores=[after - before for before, after in pairwise(sums)],
            ended=token == self.settings.eos,
            attention=None if self.attention is None else self.attention[row, parent].clone(),
        )

    def _advance(self, candidates: Candidates, is_end: Tensor) -> None:
        """Make the first `beam` candidates of each group that do not end the open hypotheses."""
        width = 2 * self.group_beam
        grouped = is_end.view(-1, width)
        places = self._first_open(grouped, self.group_beam).view(len(is_end), -1)
        if self.num_groups > 1:
            group = torch.arange(self.num_groups, device=places.device).repeat_interleave(self.group_beam)
            places = places + group * width
        ended = is_end.gather(1, places)
        self.scores = candidates.scores.gather(1, places).masked_fill(ended, -torch.inf)
        self.parents = candidates.parents.gather(1, places)
        tokens = candidates.tokens.gather(1, places)
        self.tokens = torch.cat((select_hypotheses(self.tokens, self.parents), tokens.unsqueeze(-1)), dim=2)
        self.sums = torch.cat((select_hypotheses(self.sums, self.parents), self.scores.unsqueeze(-1)), dim=2)
        if self.attention is not None:
            self.attention = select_hypotheses(self.attention, self.parents)

    def _close(self) -> None:
        """Let finished sentences leave, and finished groups of open sentences fall silent."""
        best_open = self.scores.view(len(self.rows), self.num_groups, -1)[:, :, 0].tolist()
        is_open = []
        for row, sentence in enumerate(self.rows):
            max_len = self.constraints.max_lens[sentence]
            finished = [
                is_finished(pool, score, self.step, max_len, self.settings)
                for pool, score in zip(self.pools[sentence], best_open[row], strict=True)
            ]
            is_open.append(not all(finished))
            if self.num_groups > 1:
                self.scores[row].view(self.num_groups, -1)[finished] = -torch.inf
        self._leave(is_open)

    def _leave(self, is_open: list[bool]) -> None:
        self.kept = None
        if all(is_open):
            return
        kept = refilled(is_open)
        self.rows = [self.rows[row] for row in kept]
        self.kept = torch.tensor(kept, device=self.tokens.device, dtype=torch.long)
        self.tokens, self.sums, self.scores = (x[self.kept] for x in (self.tokens, self.sums, self.scores))
        self.parents = None if self.parents is None else self.parents[self.kept]
        self.attention = None if self.attention is None else self.attention[self.kept]
