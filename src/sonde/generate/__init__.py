"""Searching for the best continuation: beam search, greedy, sampling, over any next-token function.

    settings        what to search for and when to stop, checked
    frontier        what a next-token function is given and what it returns
    hypotheses      a finished continuation, and the pool of the best ones
    stopping        the three finishing rules: exact, fairseq, hf
    constraints     lengths, prefixes, bans, penalties, n-grams: rules on the next token
    candidates      logits to log-probabilities, and the best continuations of all beams
    beam            beam search, greedy search, diverse beam search
    sampling        temperature, top-k, top-p, from a generator of its own
    sequence_model  what a model must offer to be translated with or scored by
    transformer     our own Transformer as such a model
    huggingface     a Hugging Face encoder-decoder or causal LM as such a model
    translate       lists of strings in, lists of strings out; likelihood of given pairs
    quality         BLEU and chrF

Everything up to `sampling` knows no model.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
