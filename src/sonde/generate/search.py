"""Beam search and sampling over any next-token function: batched, with finished sentences leaving
the batch.

    best = beam_search(next_logits, num_sentences, SearchSettings(beam=5))[sentence][0]

One step, for all open sentences at once:

    logits        of every open hypothesis (one per sentence at the first step)
    constraints   lengths, bans, prefixes, n-grams
    candidates    the 2 * beam best continuations of each sentence, so that after end tokens `beam`
                  are still open
    finish        those among the first `beam` that end are added to the sentence's pool
                  (`sonde.generate.hypotheses`)
    open          the first `beam` that do not end are the next hypotheses
    leave         finished sentences are removed, and the last ones take their places

The result of a sentence does not depend on the others in the batch. Edge cases: NaN logits cannot
be chosen; a sentence that cannot be continued ends with what it has, perhaps an empty list;
`max_len=0` allows only the end token (under "hf": nothing, one empty hypothesis); a beam larger
than the vocabulary searches everything; an end token at the first step is a result like any other.

Sampling works the same way: each hypothesis has one candidate, the token drawn for it, and those
that end are not replaced. Diverse beam search (`diverse_groups`, with Hamming diversity) runs every
group as its own beam, group after group within a step.

Shapes: B sentences still open, K hypotheses of each, T tokens so far, V vocabulary, S source
tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.constraints import Constraints
from sonde.generate.hypotheses import Hypothesis, Pool, is_finished
from sonde.generate.sampling import Sampling, draw
from sonde.generate.sequence_model import Frontier, NextLogits
from sonde.generate.settings import SearchSettings


class Candidates(NamedTuple):
    """The best continuations [B, n] of each sentence, best first."""

    scores: Tensor
    """Sum of log-probabilities, including the new token."""

    parents: Tensor
    """Index of the hypothesis that each one continues."""

    tokens: Tensor
    """The new token."""


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
    """Return the best hypotheses of each sentence, best first.

    `source_lengths` are needed for lengths relative to the source. Each result must begin with its
    `prefix_tokens`, which are part of it and scored. `prompts` replace the start token; they are
    not part of the result and not scored.

    ```python
    import torch

    from sonde.generate import SearchSettings, beam_search

    table = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))

    def next_logits(frontier):
        return table[frontier.tokens[:, :, -1]]

    found = beam_search(next_logits, 2, SearchSettings(beam=3, max_len=10))
    print(found[0][0].tokens, found[0][0].score)
    ```
    """
    settings = settings or SearchSettings()
    constraints = Constraints(settings, num_sentences, source_lengths, prefix_tokens)
    return _Search(
        settings, constraints, starting_tokens(num_sentences, settings, prompts).to(device)
    ).run(next_logits)


def greedy(
    next_logits: NextLogits, num_sentences: int, settings: SearchSettings | None = None
) -> list[list[Hypothesis]]:
    """Run greedy search: beam search with a beam of 1.

    ```python
    import torch

    from sonde.generate import SearchSettings, greedy

    table = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))

    def next_logits(frontier):
        return table[frontier.tokens[:, :, -1]]

    print(greedy(next_logits, 2, SearchSettings(max_len=10))[0][0].tokens)
    ```
    """
    return beam_search(
        next_logits,
        num_sentences,
        replace(settings or SearchSettings(), beam=1, n_best=1, diverse_groups=1),
    )


def sample(
    next_logits: NextLogits,
    num_sentences: int,
    settings: SearchSettings | None = None,
    sampling: Sampling | None = None,
    *,
    source_lengths: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Sample `settings.beam` continuations of each sentence and return the `n_best` with the best
    scores, best first.

    `settings.temperature` shapes the distribution and `sampling` truncates it. Scores are
    log-probabilities before truncation.
    """
    settings = replace(settings or SearchSettings(), diverse_groups=1)
    constraints = Constraints(settings, num_sentences, source_lengths)
    tokens = starting_tokens(num_sentences, settings, prompts).to(device)
    return _Search(settings, constraints, tokens, sampling or Sampling()).run(next_logits)


def log_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-softmax in float32, defined for every input.

    A NaN marks a token that cannot be chosen and +inf one that is certain. A row with nothing to
    choose from is all -inf.
    """
    logits = logits.float() if temperature == 1.0 else logits.float() / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    # One bad logit makes its whole row NaN, so checking one column is enough.
    if log_probs[..., 0].isnan().any():
        largest = torch.finfo(torch.float32).max
        cleaned = logits.nan_to_num(nan=-torch.inf, posinf=largest, neginf=-torch.inf)
        log_probs = torch.log_softmax(cleaned, dim=-1)
        log_probs = log_probs.masked_fill(log_probs.isnan(), -torch.inf)
    return log_probs


def best_candidates(log_probs: Tensor, scores: Tensor, num: int) -> Candidates:
    """Return the `num` best continuations of each sentence, best first.

    `log_probs` [B, K, V] are those of the next tokens, `scores` [B, K] those of the hypotheses. If
    there are fewer, the rest score -inf.
    """
    num_hypotheses, vocab_size = log_probs.shape[1:]
    num_found = min(num, num_hypotheses * vocab_size)
    found, index = (log_probs + scores.unsqueeze(-1)).flatten(1).topk(num_found)
    if num_found < num:
        found = torch.nn.functional.pad(found, (0, num - num_found), value=-torch.inf)
        index = torch.nn.functional.pad(index, (0, num - num_found))
    return Candidates(found, index // vocab_size, index % vocab_size)


def starting_tokens(
    num_sentences: int, settings: SearchSettings, prompts: Sequence[Sequence[int]] | None
) -> Tensor:
    """Return the first tokens of every sentence, [B, 1, T]: the start token, or its prompt, padded
    on the left.
    """
    if prompts is None:
        return torch.full((num_sentences, 1, 1), settings.start_token)
    if len(prompts) != num_sentences or not all(prompts):
        raise SettingError(
            f"prompts has {len(prompts)} entries for {num_sentences} sentences, the shortest of"
            f" {min(map(len, prompts), default=0)}",
            hint="give each sentence a prompt of at least one token",
        )
    width = max(map(len, prompts), default=1)
    filler = settings.start_token if settings.pad is None else settings.pad
    rows = [[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(rows, dtype=torch.long).view(num_sentences, 1, width)


def refilled(is_open: list[bool]) -> list[int]:
    """Return the rows that stay, with the last ones moved to the places of those that left."""
    num_open = sum(is_open)
    last = len(is_open)
    rows = []
    for row in range(num_open):
        if is_open[row]:
            rows.append(row)
            continue
        last -= 1
        while not is_open[last]:
            last -= 1
        rows.append(last)
    return rows


class _Search:
    """The open hypotheses of all sentences, and the pools of finished ones."""

    def __init__(
        self,
        settings: SearchSettings,
        constraints: Constraints,
        tokens: Tensor,
        sampling: Sampling | None = None,
    ) -> None:
        self.settings = settings
        self.sampling = sampling
        self.generators = sampling.generators(len(tokens)) if sampling else []
        self.constraints = constraints
        self.prompt_len = tokens.shape[2]
        self.num_groups = settings.diverse_groups
        self.group_beam = settings.beam // settings.diverse_groups
        # Under "hf" the result of a sentence without room is empty.
        is_open = [settings.stop != "hf" or max_len > 0 for max_len in constraints.max_lens]
        self.pools: list[list[Pool]] = [[] for _ in is_open]
        self.rows = [sentence for sentence, has_room in enumerate(is_open) if has_room]
        self.tokens = tokens[self.rows]
        # Sum of log-probabilities after each token [B, K, T], and the current sum [B, K].
        self.sums = torch.zeros(len(self.rows), 1, 0, device=tokens.device)
        self.scores = torch.zeros(len(self.rows), 1, device=tokens.device)
        self.attention: Tensor | None = None
        self.kept: Tensor | None = None
        self.parents: Tensor | None = None
        self.step = 0

    @torch.no_grad()
    def run(self, next_logits: NextLogits) -> list[list[Hypothesis]]:
        while self.rows:
            self._take_step(next_logits)
        return [self._result(pools) for pools in self.pools]

    def _result(self, pools: list[Pool]) -> list[Hypothesis]:
        if not pools:
            return [Hypothesis(tokens=[], score=0.0, token_scores=[], ended=False)]
        ranked = [hypothesis for pool in pools for hypothesis in pool.ranked]
        return sorted(ranked, key=lambda hypothesis: -hypothesis.score)[: self.settings.n_best]

    def _take_step(self, next_logits: NextLogits) -> None:
        sentences = torch.tensor(self.rows, device=self.tokens.device)
        answer = next_logits(
            Frontier(
                tokens=self.tokens,
                sentences=sentences,
                step=self.step,
                kept=self.kept,
                parents=self.parents,
            )
        )
        logits, attention = answer if isinstance(answer, tuple) else (answer, None)
        log_probs = log_probabilities(logits, self.settings.temperature)
        if self.step == 0:
            self._open_pools(log_probs.shape[-1])
        self.constraints.apply(log_probs, self.tokens, self.step, self.rows)
        if self.sampling:
            candidates = self._drawn(log_probs, self.sampling)
        else:
            candidates = self._best(log_probs)
        if attention is not None:
            newest = attention.unsqueeze(2)
            if self.attention is not None:
                newest = torch.cat((self.attention, newest), dim=2)
            self.attention = newest
        self._finish(candidates)
        self._advance(candidates)
        self.step += 1
        self._close()

    def _open_pools(self, vocab_size: int) -> None:
        own = self.settings
        if own.stop == "fairseq" and self.num_groups == 1 and not self.sampling:
            self.group_beam = max(1, min(self.group_beam, vocab_size - 1))
        if own.stop == "exact" and not self.sampling:
            size = min(own.n_best, self.group_beam)
        else:
            size = self.group_beam
        first_come = own.stop == "fairseq" and not self.sampling
        for sentence in self.rows:
            self.pools[sentence] = [
                Pool(size, first_come=first_come) for _ in range(self.num_groups)
            ]

    @property
    def width(self) -> int:
        """Number of candidates per group. Beam search needs twice the beam, since half of them may
        end.
        """
        return self.group_beam if self.sampling else 2 * self.group_beam

    def _best(self, log_probs: Tensor) -> Candidates:
        """Return the best candidates [B, G * width] of all groups, each group penalised for what
        earlier ones chose.
        """
        found: list[Candidates] = []
        for group in range(self.num_groups):
            first = 0 if self.step == 0 else group * self.group_beam
            mine = slice(first, first + self.group_beam)
            own = log_probs[:, mine]
            if group:
                own = own - self.settings.diversity * self._chosen(found, log_probs.shape[-1])
            one = best_candidates(own, self.scores[:, mine], self.width)
            found.append(one._replace(parents=one.parents + first))
        if len(found) == 1:
            return found[0]
        return Candidates(*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)))

    def _chosen(self, groups: list[Candidates], vocab_size: int) -> Tensor:
        """Return how many open hypotheses of these groups continue with each token, [B, 1, V]."""
        chosen = torch.zeros(len(self.rows), vocab_size, device=self.tokens.device)
        for group in groups:
            going_on = self._first_open(group.tokens == self.settings.eos)
            counted = (group.scores.gather(1, going_on) > -torch.inf).float()
            chosen.scatter_add_(1, group.tokens.gather(1, going_on), counted)
        return chosen.unsqueeze(1)

    def _drawn(self, log_probs: Tensor, sampling: Sampling) -> Candidates:
        num_samples = self.group_beam
        parents = torch.arange(num_samples, device=log_probs.device).expand(len(self.rows), -1)
        if self.step == 0:
            parents = torch.zeros_like(parents)
            log_probs = log_probs.expand(-1, num_samples, -1)
        uniform = torch.stack(
            [torch.rand(num_samples, generator=self.generators[row]) for row in self.rows]
        )
        tokens = draw(log_probs, uniform.to(log_probs.device), sampling)
        scores = self.scores + log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return Candidates(scores, parents, tokens)

    def _first_open(self, is_end: Tensor) -> Tensor:
        """Return the indices of the first candidates of one group that do not end, as many as its
        beam.
        """
        order = torch.arange(is_end.shape[1], device=is_end.device)
        return (is_end * is_end.shape[1] + order).topk(self.group_beam, largest=False).indices

    def _finish(self, candidates: Candidates) -> None:
        """Add the candidates that end and are among the first `beam` of their group to the
        pools.
        """
        ends = candidates.tokens == self.settings.eos
        if self.settings.stop == "hf":
            cut = [
                row
                for row, s in enumerate(self.rows)
                if self.step + 1 >= self.constraints.max_lens[s]
            ]
            ends[cut] = True
        rank = torch.arange(ends.shape[1], device=ends.device) % self.width
        ends &= (rank < self.group_beam) & (candidates.scores > -torch.inf)
        places = ends.nonzero()
        ended = (value[places[:, 0], places[:, 1]].tolist() for value in candidates)
        for (row, place), total, parent, token in zip(places.tolist(), *ended, strict=True):
            pool = self.pools[self.rows[row]][place // self.width]
            score = total / float((self.step + 1) ** self.settings.length_penalty)
            if pool.would_take(score):
                pool.add(self._hypothesis(row, parent, token, total, score))

    def _hypothesis(
        self, row: int, parent: int, token: int, total: float, score: float
    ) -> Hypothesis:
        sums = [0.0, *self.sums[row, parent].tolist(), total]
        return Hypothesis(
            tokens=[*self.tokens[row, parent, self.prompt_len :].tolist(), token],
            score=score,
            token_scores=[after - before for before, after in pairwise(sums)],
            ended=token == self.settings.eos,
            attention=None if self.attention is None else self.attention[row, parent].clone(),
        )

    def _advance(self, candidates: Candidates) -> None:
        """Turn the first `beam` candidates of each group that do not end into the open
        hypotheses.
        """
        is_end = candidates.tokens == self.settings.eos
        every_row = torch.arange(len(is_end), device=is_end.device).unsqueeze(1)
        if not self.sampling:
            places = self._first_open(is_end.view(-1, self.width)).view(
                len(is_end), self.num_groups, -1
            )
            places = places + self.width * torch.arange(
                self.num_groups, device=places.device
            ).unsqueeze(1)
            candidates = Candidates(*(value[every_row, places.flatten(1)] for value in candidates))
        self.scores = candidates.scores.masked_fill(
            candidates.tokens == self.settings.eos, -torch.inf
        )
        self.parents = candidates.parents
        self.tokens = torch.cat(
            (self.tokens[every_row, self.parents], candidates.tokens.unsqueeze(-1)), dim=2
        )
        self.sums = torch.cat(
            (self.sums[every_row, self.parents], self.scores.unsqueeze(-1)), dim=2
        )
        if self.attention is not None:
            self.attention = self.attention[every_row, self.parents]

    def _close(self) -> None:
        """Stop the finished groups of open sentences, and remove finished sentences."""
        best_open = self.scores.view(len(self.rows), self.num_groups, -1).amax(-1).tolist()
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
        self.kept = None
        if all(is_open):
            return
        kept = refilled(is_open)
        self.rows = [self.rows[row] for row in kept]
        self.kept = torch.tensor(kept, device=self.tokens.device, dtype=torch.long)
        self.tokens, self.sums, self.scores = (
            x[self.kept] for x in (self.tokens, self.sums, self.scores)
        )
        self.parents = None if self.parents is None else self.parents[self.kept]
        self.attention = None if self.attention is None else self.attention[self.kept]
