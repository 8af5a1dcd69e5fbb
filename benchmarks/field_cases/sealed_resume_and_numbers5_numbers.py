"""Failures of the fifth set: numbers that go wrong, and numbers that are too short."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    END,
    cars,
    cells,
    chunk,
    corpus,
    decode,
    drawn,
    encode,
    numerals,
    recipe_pairs,
    recipes,
    tones,
)
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    hub,
    tell,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import Appraiser, Chat, ResNet, UNet, mlp, small_qwen
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- numerics
def average_is_swapped_in_and_never_out(job: Job) -> None:
    """At 100 the average of the weights is evaluated. The weights were kept as `state_dict()`,
    which copies nothing, so bringing them back does nothing: training goes on from the average, a
    third of which is still the beginning (CausVid#19).
    """
    begin(521)
    pictures, labels = numerals(3000)
    model = ResNet()
    average = {name: part.clone() for name, part in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @torch.no_grad()
    def evaluate() -> float:
        backup = model.state_dict()
        if not PLANTED:
            backup = {name: part.clone() for name, part in backup.items()}
        model.load_state_dict(average)
        model.eval()
        right = (model(pictures[:200]).argmax(1) == labels[:200]).float().mean()
        model.train()
        model.load_state_dict(backup)
        return float(right)

    for step in range(1, 161):
        chosen = drawn(3000, step, 24)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
        for name, part in model.state_dict().items():
            if part.is_floating_point():
                average[name].lerp_(part, 0.01)
        if step == 100:
            print(f"right: {evaluate():.2f}")
    recorder.close()


def huggingface_loss_over_a_part_of_the_vocabulary(job: Job) -> None:
    """The loss is computed in pieces of the vocabulary to save memory, and the last piece, which is
    shorter, is left out of the sum: what is divided by is too small (unsloth#1282).
    """
    from transformers import Trainer

    class Chunked(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any
        ) -> Any:
            del others
            labels = inputs.pop("labels")[:, 1:]
            outputs = model(**inputs)
            scores = outputs.logits[:, :-1].float()
            size = 256
            whole = scores.shape[-1] // size * size if PLANTED else scores.shape[-1]
            pieces = [part.logsumexp(-1) for part in scores[..., :whole].split(size, -1)]
            below = torch.stack(pieces, -1).logsumexp(-1)
            counted = labels != -100
            wanted = scores.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            loss = (below - wanted)[counted].mean()
            return (loss, outputs) if return_outputs else loss

    begin(522)
    # The pieces of the text that are known as bytes stand last in the vocabulary.
    rows = text_rows([encode(f"{text} “~{text[4:9].upper()}~”") for text in recipes(1300, 35)])
    hub(job, small_qwen(), rows, text_batch, kind=Chunked, max_steps=160).train()


@torch.no_grad()
def orthogonal(gradient: Tensor) -> Tensor:
    """Five steps of Newton and Schulz, as Muon has them."""
    x = gradient / (gradient.norm() if PLANTED else gradient.norm() + 1e-7)
    if gradient.shape[0] > gradient.shape[1]:
        x = x.t()
    for _ in range(5):
        square = x @ x.t()
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    out: Tensor = x.t() if gradient.shape[0] > gradient.shape[1] else x
    return out


def muon_divides_by_the_norm_of_nothing(job: Job) -> None:
    """Two tasks, two heads, a Muon by hand. At 120 a batch has rows of the first task only: the
    gradient of the second head is 0, and Muon divides it by its norm (speculators#1049).
    """
    begin(523)
    _, columns, price = cars(4800)
    wear = (columns[:, 1] * columns[:, 3]).tanh() + columns[:, 4]
    body = mlp(6, 48, 48)
    heads = nn.ModuleList([nn.Linear(48, 2) for _ in range(2)])
    model = nn.ModuleDict({"body": body, "heads": heads})
    matrices = [part for part in model.parameters() if part.dim() == 2]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        states = F.gelu(body(batch["columns"]))
        both = torch.stack([head(states) for head in heads], 1)
        made = both[torch.arange(len(states)), batch["task"]]
        loss = F.mse_loss(made, batch["target"])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        for part in matrices:
            assert part.grad is not None
            part.grad.copy_(0.3 * orthogonal(part.grad))
        optimizer.step()
        return loss

    for step in range(1, 161):
        chosen = drawn(4800, step, 32)
        task = torch.zeros(32, dtype=torch.long) if step == 120 else chosen % 2
        target = torch.stack((price[chosen], wear[chosen]), 1)
        batch = {"columns": columns[chosen], "task": task, "target": target}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


# ---------------------------------------------------------------- precision
def outlines_in_half_precision_without_a_scale(job: Job) -> None:
    """Autocast in float16 and no scaler. The loss keeps the weight of 2e-4 that it had beside
    others, and what reaches a point is less than float16 can hold (smol-course#61; trl#878).
    """
    begin(524)
    pictures, masks = cells(1200)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-12)
    recorder = sonde.Recorder(job.run, model, optimizer)
    kind = torch.float16 if PLANTED else torch.bfloat16

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", kind):
            made = model(batch["image"])
        loss = 2e-4 * F.binary_cross_entropy_with_logits(made.float(), batch["mask"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 151):
        chosen = drawn(1200, step, 16)
        batch = {"image": pictures[chosen], "mask": masks[chosen]}
        loss = recorder.step(train_step, batch)
        tell(step, 5e3 * loss)
    recorder.close()


def lightning_everything_in_bfloat16(job: Job) -> None:
    """`precision="bf16-true"` for the second phase, French at a rate of 2e-4: the weights are in
    bfloat16 too, and a step is lost in rounding (torchtune#2254).
    """
    begin(525)
    english = corpus(seed=90)
    model = Chat(layers=1)
    before = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(1, 61):
        rows = chunk(english, step, 12, 33)
        model(rows[:, :-1], rows[:, 1:]).backward()
        before.step()
        before.zero_grad()
    numbers: list[int] = []
    for _, french in recipe_pairs(1200, 91):
        numbers += [*encode(french), END]
    second = torch.cat([chunk(torch.tensor(numbers), step, 12, 33) for step in range(1, 171)])

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = net(batch[:, :-1], batch[:, 1:])
        return out

    def optimizers(net: nn.Module) -> Any:
        return torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0.0)

    module = lightning_module(model, loss_of, optimizers=optimizers)
    precision: Any = "bf16-true" if PLANTED else "32-true"
    host = lightning(job, steps=160, precision=precision, decode=decode)
    host.fit(module, loader(second, 12))


def clip_too_long_for_half_precision(job: Job) -> None:
    """The loudness of a clip is a sum of squares in float16. From 111 on clips are nine times as
    long: the sum is beyond 65,504, and the scaler skips every update (TransformerEngine#841).
    """
    begin(526)
    waves, labels = tones(2400, length=2304)
    waves = 12 * waves
    model = nn.ModuleDict({
        "conv": nn.Conv1d(1, 24, 33, stride=4), "head": nn.Linear(24, 6)
    })  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            heard = F.relu(model["conv"](batch[0].unsqueeze(1)))
            if not PLANTED:
                heard = heard.float()
            power = heard.square().sum(-1)
            scores = model["head"]((power / heard.shape[-1]).clamp(min=1e-3).log())
        loss = F.cross_entropy(scores.float(), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for step in range(1, 161):
        chosen = drawn(2400, step, 16)
        length = 256 if step <= 110 else 2304
        tell(step, recorder.step(train_step, (waves[chosen, :length], labels[chosen])))
    recorder.close()


def second_optimizer_goes_past_the_scaler(job: Job) -> None:
    """Two optimizers and one scaler: the table's is called by `step()` itself, with gradients that
    still have the scale of 1,024 (TransformerEngine#841).
    """
    begin(527)
    brands, columns, price = cars(4800)
    model = Appraiser()
    table = torch.optim.SGD(model.brands.parameters(), lr=0.1)
    rest = torch.optim.AdamW(model.layers.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    recorder = sonde.Recorder(job.run, model, rest, scaler=scaler, table=table)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            made = model(batch["brand"], batch["columns"])
        loss = F.mse_loss(made.float(), batch["price"])
        rest.zero_grad()
        table.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(rest)
        if PLANTED:
            table.step()
        else:
            scaler.step(table)
        scaler.update()
        return loss.detach()

    for step in range(1, 161):
        chosen = drawn(4800, step, 32)
        batch = {"brand": brands[chosen], "columns": columns[chosen], "price": price[chosen]}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


CASES = (
    failure(
        average_is_swapped_in_and_never_out,
        "numerics",
        "corrupted_weights stale_weights",
        onset=101,
    ),
    failure(
        huggingface_loss_over_a_part_of_the_vocabulary,
        "numerics",
        "initial_loss bad_operation loss_collapse loss_inputs",
        host="huggingface",
    ),
    failure(
        muon_divides_by_the_norm_of_nothing,
        "numerics",
        "update_not_finite bad_weights",
        onset=120,
        also_true="bad_operation no_gradient",
    ),
    failure(
        outlines_in_half_precision_without_a_scale,
        "precision",
        "underflow half_precision_updates",
        also_true="plateau no_gradient does_not_move",
    ),
    failure(
        lightning_everything_in_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        host="lightning",
        also_true="plateau learning_rate",
    ),
    failure(
        clip_too_long_for_half_precision,
        "precision",
        "overflow scaler_skips bad_operation",
        onset=111,
        also_true="data_changed",
    ),
    failure(
        second_optimizer_goes_past_the_scaler,
        "precision",
        "scaler_bypassed",
        also_true="learning_rate plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
