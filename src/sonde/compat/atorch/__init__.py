"""ATorch's loss spike recorder: `TokenLossSpike`, its lines and its data layout.

    from sonde import TokenLossSpike

    spike = TokenLossSpike("spikes", [("wikipedia", "corpus/base")], each_sample_len=4,
        min_iter=2000, min_loss=10)
    spike.save_loss("rank0.txt", loss, step, losses_str="2.44,40.05",
        sample_infos_str="20-0-11-22-0,20-0-13-14-2")
    spike.decode_loss_spike("out.txt", tokenizer)

`DatasetLossSpike` does the same for sonde's datasets; for another layout derive from `LossSpike`.
`sonde spikes --atorch DIR` reads its files. The idea without a fixed threshold is in
`sonde.spikes`: it finds spikes by itself, and names the samples of every step.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
