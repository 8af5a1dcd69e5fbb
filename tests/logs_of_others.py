"""Logs as other programs write them, made line by line in their own formats, with a loss that can
be spoiled at chosen steps.
"""

import json
import math
import random
from collections.abc import Callable, Mapping

Loss = Callable[[int], float]


def falling(
    planted: Mapping[int, float] | None = None, *, seed: int = 1, scale: float = 100.0
) -> Loss:
    """A loss that falls from 8.5 to 2.5 with a little noise; `planted` gives its value at some
    steps.
    """
    known = planted or {}

    def loss(step: int) -> float:
        noise = random.Random(f"{seed} {step}").gauss(0, 0.05)
        return known.get(step, 2.5 + 6 * math.exp(-step / scale) + noise)

    return loss


def megatron_line(step: int, loss: float, *, norm: float = 1.1, rate: float = 1e-4) -> str:
    numbers = f"learning rate: {rate:.3E} | global batch size:   256 | lm loss: {loss:.6E}"
    return (
        f" [2024-05-01 12:00:01] iteration {step:8d}/  500000 | consumed samples: {step * 256:12d}"
        f" | elapsed time per iteration (ms): 1234.5 | {numbers} | loss scale: 1.0 |"
        f" grad norm: {norm:.3f} | num zeros: 0.0 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def nemo_line(step: int, loss: float) -> str:
    return (
        f"Training epoch 0, iteration {step}/999 | lr: 3.000e-04 | global_batch_size: 4 |"
        f" global_step: {step} | reduced_train_loss: {loss:.4f} | train_step_timing in s: 0.7 |"
        f" consumed_samples: {4 * (step + 1)}"
    )


def nanogpt_line(step: int, loss: float) -> str:
    return f"iter {step}: loss {loss:.4f}, time 123.45ms, mfu 12.34%"


def torchtitan_line(step: int, loss: float) -> str:
    return (
        f"[rank0]:[titan] 2024-10-01 12:00:01,123 - root - INFO - \x1b[31mstep: {step:2d}  \x1b[32m"
        f"loss: {loss:7.4f}  \x1b[33mmemory: 12.34GiB(12.3%)  tps: 1,234  mfu: 12.3%\x1b[39m"
    )


def modded_line(step: int, loss: float) -> str:
    return f"step:{step}/5100 train_loss:{loss:.4f} train_time:{step * 123}ms step_avg:123.45ms"


def nanochat_line(step: int, loss: float) -> str:
    return (
        f"step {step:05d}/01000 ({step / 10:.2f}%) | loss: {loss:.6f} | lrm: 1.00 | dt: 123.45ms |"
        " tok/sec: 123,456 | mfu: 12.34 | total time: 0.10m"
    )


def fairseq_line(step: int, loss: float) -> str:
    return (
        f"2022-01-01 12:00:01 | INFO | train_inner | epoch 001: {step:6d} / 5000 loss={loss:.3f},"
        f" ppl=2000, wps=1234.5, ups=1.2, wpb=4000, num_updates={step}, lr=1e-05, gnorm=2.3"
    )


def printed_dict_line(step: int, loss: float) -> str:
    bar = f"\r {step // 10}%|█         | {step}/1000 [00:10<10:00, 50.0it/s]\r"
    return bar + str({"loss": round(loss, 4), "grad_norm": 1.2, "epoch": step / 1000})


def olmo_lines(step: int, loss: float) -> str:
    return (
        f"2024-01-01 12:00:01.123 node:0 olmo.train:1 INFO [step={step}/739328]\n"
        f"    train/CrossEntropyLoss={loss:.4f}\n    train/Perplexity=12.3\n"
        "    optim/total_grad_norm=1.2"
    )


def llm_c_line(step: int, loss: float) -> str:
    return f"s:{step} trl:{loss:.6f} lr:0.000600 norm:1.20"


def dllogger_line(step: int, loss: float) -> str:
    record = {
        "timestamp": f"{1.7e9 + step}",
        "elapsedtime": f"{step}",
        "datetime": "2024-01-01 12:00:01",
        "type": "LOG",
        "step": [1, step],
        "data": {"loss": loss, "lr": 1e-3},
    }
    return f"DLLL {json.dumps(record)}"


def tcap_line(step: int, loss: float) -> str:
    record = {
        "timestamp": f"{1.7e9 + step}",
        "elapsedtime": f"{step}",
        "type": "LOG",
        "step": [step],
        "data": str({"loss": f"{loss}", "lr": "0.001"}),
    }
    return f"TCAPPDLL {json.dumps(record)}"


def mllog_line(step: int, loss: float) -> str:
    record = {
        "namespace": "",
        "time_ms": 1760057737384 + step,
        "event_type": "POINT_IN_TIME",
        "key": "tracked_stats",
        "value": {"train_step_time": 0.9, "reduced_train_loss": loss},
        "metadata": {"file": "/workspace/llm/custom_callbacks.py", "lineno": 312, "step": step},
    }
    return f"  0: :::MLLOG {json.dumps(record)}"


def json_line(step: int, loss: float) -> str:
    return json.dumps({"step": step, "train": {"loss": loss}, "lr": 1e-4})


def marian_line(step: int, loss: float) -> str:
    return (
        f"[2024-05-01 12:00:01] Ep. 1 : Up. {step} : Sen. {step * 3200:,} : Cost {loss:.8f} *"
        f" 1,234,567 @ 1,234 after {step * 99999:,} : Time 12.34s : 12345.67 words/s : gNorm 0.8123"
    )


def opennmt_line(step: int, loss: float) -> str:
    return (
        f"[2024-05-01 12:00:01,123 INFO] Step {step}/100000; acc: 12.3; ppl: {math.exp(loss):6.1f};"
        f" xent: {loss:.4f}; lr: 0.00012; sents: 1234; 1234/1234 tok/s;    123 sec;"
    )


LINES: Mapping[str, Callable[[int, float], str]] = {
    "Megatron's log": megatron_line,
    "NeMo's log": nemo_line,
    "nanoGPT's log": nanogpt_line,
    "torchtitan's log": torchtitan_line,
    "modded-nanogpt's log": modded_line,
    "nanochat's log": nanochat_line,
    "Marian's log": marian_line,
    "OpenNMT's log": opennmt_line,
    "fairseq's log": fairseq_line,
    "what a Hugging Face Trainer prints": printed_dict_line,
    "OLMo's log": olmo_lines,
    "llm.c's log": llm_c_line,
    "DLLogger's lines": dllogger_line,
    "MLPerf's MLLOG": mllog_line,
    "JSON lines": json_line,
}
"""Every format of lines that is recognised, by its words."""


def log_of(line: Callable[[int, float], str], loss: Loss, steps: range) -> str:
    """A whole log."""
    return "".join(f"{line(step, loss(step))}\n" for step in steps)


def trainer_state(loss: Loss, steps: range, *, norm_at: Mapping[int, float] | None = None) -> str:
    """The state of a Hugging Face Trainer, with evaluations and a summary at the end."""
    norms = norm_at or {}
    history: list[dict[str, float]] = []
    for step in steps:
        entry = {"epoch": step / 1000, "grad_norm": norms.get(step, 1.1), "learning_rate": 5e-5}
        history.append({**entry, "loss": round(loss(step), 4), "step": step})
        if step % 250 == 0:
            history.append({"epoch": step / 1000, "eval_loss": 2.6, "step": step})
    last = steps[-1]
    history.append({"epoch": last / 1000, "train_loss": 2.9, "train_runtime": 9.5, "step": last})
    return json.dumps({"best_metric": None, "global_step": last, "log_history": history})
