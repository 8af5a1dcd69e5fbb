"""Data: from raw text to exact, resumable batches under a token budget.

    from sonde.data import Collater, DataDirectory, LoaderSettings, PrepareSettings, TokenLoader
    from sonde.data import open_pairs, prepare

    prepare(PrepareSettings(splits={"train": {"en": Path("corpus.en"), "de": Path("corpus.de")}},
        out=Path("data")))
    directory = DataDirectory("data")
    # `pairs[7].source` is a zero-copy numpy view
    pairs = open_pairs(directory, "train")
    collater = Collater.of(directory.tokenizer().specials)
    loader = TokenLoader(pairs, collater, LoaderSettings(max_tokens=4096))
    # Tensors, and which sample each row is
    for batch in loader:
        ...
    # A few integers: resume at this very batch
    state = loader.state_dict()

Dataset, batch sampler and collater each work on their own in a plain `torch.utils.data.DataLoader`.
Only `loader` imports torch.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
