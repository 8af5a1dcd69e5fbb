"""Text generation: beam search, greedy search and sampling, over any next-token function.

    from sonde.generate import SearchSettings, beam_search, translate

    # A Transformer, a Hugging Face model, or your own
    found = translate(model, tokenizer, ["ein Haus"], SearchSettings(beam=5))
    found[0].text

    def next_logits(frontier):                                  # the search itself knows no model
        return table[frontier.tokens[:, :, -1]]                 # a bigram model: [B, K, V]

    # The best hypothesis of the first sentence
    best = beam_search(next_logits, num_sentences=2)[0][0]

`SearchSettings(stop=...)` selects the stopping rule: exact, fairseq's or Hugging Face's.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
