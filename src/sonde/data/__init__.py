"""From raw text to exact, resumable, token-budget batches.

text_blocks              files (plain, gz, zst, standard input) cut into blocks at line ends
tokenizer                the protocol every tokenizer keeps; tokenizer_{hf,words,sentencepiece,bytes} keep it
vocabulary               the tokenizer of a directory: made from its text, or taken from a file
unigram                  training of a unigram vocabulary that gives the same result every time
tokenizer_choice         `bpe`, `unigram`, `word`, `bytes` or a file, turned into a tokenizer
part                     one block encoded into one file, by any worker
binarise                 the whole road: blocks, workers, parts
merge                    parts into one `.bin`, `.idx`, and sidecar a language
workers                  where the parts are made: this process, a pool, a Dask cluster
mmididx                  the index format, both dialects, read and written
sidecar                  what sonde adds: checksums, tokenizer, the source line of every sample
token_file               the memory-mapped reader of one language
directory                what a prepared directory holds
fairseq_directory        what one of fairseq-preprocess holds, and fairseq's names for ours
samples                  one sample, and many rows to be collated at once
pairs, blocks, mixture   datasets: translation, language model, several by name
batching                 token-budget batches
order                    orders that depend on a seed and an epoch and on nothing else
position, batch_sampler  where an epoch stands; which batches a rank takes
skip_list                samples to leave out, in a text file a person can edit
batch, collate, loader   tensors
watched_workers          naming the worker process that died or stalls; these four are the only modules that need torch
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
