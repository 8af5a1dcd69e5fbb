"""Loss spikes: noticed by themselves, recorded with the steps before them, decoded to the text that caused them.

    recorder             SpikeRecorder: the way in for a training loop
    detectors            how a number is judged: what a rule is, and three simple ones
    robust_rule          the rule that needs no threshold
    length_model         what samples of a length usually lose, and how far above it one is
    sample_watch         single samples that stand out, and means with the lengths taken out
    sample_recorder      their way from the loop to the watch and the records
    ledger               every sample's history, written beside the training
    ledger_blocks        its files' blocks, and rows put together (docs/formats/ledger.md)
    sample_keys          samples as 64-bit keys
    events               bad steps that belong together, as one event
    window               the last numbers, with median and spread
    step_entry, holding  what is kept of a step, without reading it
    randomness           digests of random generators
    writer               the thread that writes
    spike_records        the records (docs/formats/spikes.md)

    spike_log            the spikes of a run, over ranks and restarts
    ledger_log           the ledger of a run, over ranks and restarts
    worst                its worst samples, with their text
    decoding             from a sample's name to its text
    data_files           which files a dataset is made of
    sample_text          tokens as text, by any tokenizer
    skipping             the samples of a spike onto a skip list

    loss_spike           LossSpike: the documented interface, for any layout of data
    token_loss_spike     TokenLossSpike: ATorch's layout
    dataset_loss_spike   DatasetLossSpike: sonde's own datasets
    loss_lines           ATorch's line (docs/formats/atorch-spikes.md)
    line_file, summary   writing lines; what decoding saw

Importing it imports no torch.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
