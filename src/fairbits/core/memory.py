"""Limits of memory: how much is held at a time, each with its unit and the reason for its size."""

from fairbits.core.units import GIB, MIB

# files

JSON_BYTES = 100_000_000  # bytes of a JSON file or header: what safetensors allows; real ones have a tenth of it
TOKENIZER_BYTES = 2 * GIB  # bytes that a tokenizer may take where it is parsed for the first time
JSON_LEVELS = 40  # levels of lists and objects: ours have six, a configuration ten; parsers are recursive
JSON_CONTAINERS = 5_000_000  # lists and objects in JSON, each at least 64 bytes: a header has three per tensor
LINE_BYTES = 16_000_000  # bytes of a line of text that is read: a file without line ends must not fill the memory
CLIP_BYTES = 64 * MIB  # bytes of a file of sound: 30 s of two channels at 192,000 samples of 32 bits have 46 MB
WRITTEN_BYTES = 16 * MIB  # bytes of a tensor that are written at a time: calls cost nothing, and progress moves

PART_BYTES = 4 * MIB  # bytes of a file read at a time, where all of it passes: hashing takes longer than a call
REQUEST_BYTES = 16 * MIB  # bytes asked of the Hub at a time: at 100 MB/s an answer takes longer than the way there
WAITING_BLOCKS = 3  # blocks of codes that wait to be written while the next is computed, one byte per weight

# weights

PACKED_WEIGHTS = 2**22  # weights that are packed at a time: copies of 4 MiB
GPU_PACKED_WEIGHTS = 2**28  # the same on a GPU, where every call costs as much as packing a million: copies of 256 MiB
COUNTED_WEIGHTS = 2**24  # weights whose values are counted at a time: a copy of 64 MiB
SUMMED_WEIGHTS = 2**16  # weights whose powers are summed at a time: float64 copies of 512 KiB stay in the caches
KEPT_ERRORS_BYTES = 512 * MIB  # bytes of rounding errors that an audit keeps; more are computed for every batch
ERROR_ROWS = 256  # rows of a matrix of errors that are widened to float64 at a time: 8 MiB at 4096 columns
LEARNED_WEIGHT_BYTES = 6  # bytes of each weight that is learned: its first code, its offset and two moments
LEARNING_SHARE = 0.6  # share of free GPU memory that the weights of all blocks may take while learned together
CPU_END_TO_END_WEIGHTS = 50_000_000  # weights up to which a model is learned end to end on a CPU; more take hours

# activations: positions are tokens of a batch, padding included

PASS_ACTIVATIONS_BYTES = 96 * MIB  # bytes of the activations of one batch in a pass of a whole model, roughly
GPU_PASS_ACTIVATIONS_BYTES = 16 * PASS_ACTIVATIONS_BYTES  # the same on a GPU
BLOCK_ACTIVATIONS_BYTES = 64 * MIB  # bytes of the activations of one batch in a block that is rounded, roughly
BLOCK_POSITIONS = 1024  # positions of a batch that passes a block: as measured, activations stay in the caches
GPU_BLOCK_ACTIVATIONS_BYTES = 16 * BLOCK_ACTIVATIONS_BYTES  # on a GPU a call costs so much that it should do much
GPU_BLOCK_POSITIONS = 8 * BLOCK_POSITIONS  # the same on a GPU
GPU_WALK_STATES_BYTES = 4 * GIB  # bytes of hidden states up to which they stay on the GPU while blocks are rounded
BLOCK_BACKWARD_BYTES = 64 * MIB  # bytes of one batch in the backward pass of a single block, roughly: more is slower
BLOCK_BACKWARD_POSITIONS = 512  # positions of such a batch, at least: with fewer, weights are waited for
GPU_BLOCK_BACKWARD_BYTES = 2 * GIB  # the same on a GPU
WHOLE_MODEL_BYTES = GIB  # bytes of weights up to which a model is audited as a whole, not block by block
WHOLE_MODEL_SHARE = 0.5  # share of free memory up to which a model is evaluated as a whole, not block by block
STATES_BYTES = 4 * GIB  # bytes of hidden states that a pass in blocks keeps; others are computed again
GPU_STATES_BYTES = 12 * GIB  # the same on a GPU
LEAST_STATES_FACTOR = 1.5  # how much more an audit in blocks may keep rather than pass the text in several parts
EVALUATION_POSITIONS = 1024  # positions of an evaluated batch without logits, at least: fewer wait for weights
GPU_EVALUATION_POSITIONS = 8 * EVALUATION_POSITIONS  # on a GPU a call costs so much that it should do much
LEARNING_POSITIONS = 2048  # positions that pass a model at a time, without gradients, while it is learned
OVERLAY_POSITIONS = 1024  # positions that pass a base at a time, without gradients, while overlays are made for it
INPUT_PRODUCTS_BYTES = 2 * GIB  # bytes of E[x xᵀ] at a time; where inputs need more, the text passes the model again

# logits

LOGITS = 2**21  # logits of one model that exist at a time, if LOGIT_POSITIONS allows: 8 MiB stay in the caches
LOGIT_POSITIONS = 64  # positions whose logits exist at a time, at least
GPU_LOGITS_FACTOR = 32  # how many times more on a GPU, where the time goes into calls rather than into memory
GRADIENT_POSITIONS = 128  # positions whose logits exist at a time with gradients: 250 MB for 250,000 tokens
CACHED_LOGITS = 2**20  # logits that pass several operations at a time on the CPU: copies of 4 MiB stay in its caches
GPU_GRADIENT_POSITIONS = 512  # the same on a GPU: with a vocabulary of 128,000 each of the copies takes 250 MB

# tables

MINIMAX_TABLE_NUMBERS = 2**27  # languages × weights up to which a tensor gets one scale for the worst language: 1 GiB
RESAMPLED_COUNTS = 2_000_000  # counts, resamples × documents, that are drawn at a time: 16 MB
