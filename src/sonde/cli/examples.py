"""What `sonde VERB --help` shows below the options: up to three command lines that people type.

A test parses every one of them. Importing this module imports no verb.
"""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "demo": ("sonde demo", "sonde demo --translate"),
    "watch": (
        "sonde watch runs",
        "sonde watch runs --alert https://hooks.slack.com/services/…",
        "sonde watch train.log --until-done",
    ),
    "runs": ("sonde runs", "sonde runs experiments --json"),
    "show": ("sonde show runs/mine", "sonde show runs/mine --all"),
    "tail": ("sonde tail runs/mine", "sonde tail runs/mine --lines 50 --once"),
    "dashboard": ("sonde dashboard runs", "sonde dashboard runs --port 8080"),
    "why": (
        "sonde why trainer_state.json",
        "sonde why lightning_logs/version_0/metrics.csv",
        "sonde why runs --check",
    ),
    "spikes": (
        "sonde spikes runs/mine",
        "sonde spikes runs/mine --step 186",
        "sonde spikes --atorch DIR --dataset wiki=wiki.bin --sample-len 2048",
    ),
    "diagnose": (
        "sonde diagnose runs/mine",
        "sonde diagnose runs/mine --step 186",
        "sonde diagnose runs/mine -- python train.py --lr 3e-4",
    ),
    "replay": (
        "sonde replay runs/mine --step 186",
        "sonde replay runs/mine --step 186 --dump",
        "sonde replay runs/mine --step 186 -- python train.py --lr 3e-4",
    ),
    "worst": (
        "sonde worst runs/mine",
        "sonde worst runs/mine --num 20",
        "sonde worst runs/mine --skip",
    ),
    "check": ("sonde check -- python train.py --lr 3e-4",),
    "compare": ("sonde compare dump-a dump-b", "sonde compare dump-a dump-b --rtol 1e-5"),
    "compare-logs": (
        "sonde compare-logs runs/before runs/after",
        "sonde compare-logs runs/before runs/after --metric val.loss --rtol 0.01",
    ),
    "rollback": (
        "sonde rollback runs/mine --step 186",
        "sonde rollback runs/mine --step 186 --apply",
        "sonde rollback runs/mine --step 186 --worst 1",
    ),
    "skip": ("sonde skip runs/mine --step 186 --worst 1",),
    "checkpoints": (
        "sonde checkpoints runs/mine",
        "sonde checkpoints runs/mine --verify",
        "sonde checkpoints runs/mine --average 5",
    ),
    "audit": (
        "sonde audit corpus.txt",
        "sonde audit 'corpus.{en,de}' --html audit.html",
        "sonde audit data --skip skip-list.txt",
    ),
    "prepare": (
        "sonde prepare --train corpus.txt --out data",
        "sonde prepare --train 'train.{en,de}' --valid 'valid.{en,de}' --out data",
    ),
    "inspect": ("sonde inspect data", "sonde inspect data --sample 382"),
    "train": (
        "sonde train data --run runs/mine --max-epochs 20",
        "sonde train --run runs/mine",
        "sonde train data --run runs/mine --arch base --heal 3",
    ),
    "translate": ("sonde translate runs/mine --input text.en",),
    "generate": ("sonde generate runs/mine --prompt 'Once upon a time'",),
    "score": ("sonde score runs/mine --source text.en --target text.de",),
    "plot": ("sonde plot runs/mine", "sonde plot runs/mine loss lr --from 100 --to 400"),
    "log": ("sonde log runs/mine", "sonde log a.json b.json --csv"),
    "report": ("sonde report runs/mine", "sonde report runs/mine -o report.md"),
    "sync": ("sonde sync runs/mine /backup/mine", "sonde sync runs/mine s3://bucket/mine"),
    "import-tensorboard": ("sonde import-tensorboard tb-logs --out runs/imported",),
    "import-wandb": ("sonde import-wandb wandb --out runs/imported",),
    "import-trainer-state": ("sonde import-trainer-state output --out runs/imported",),
    "import-log": ("sonde import-log train.log --out runs/imported",),
    "completion": (
        "source <(sonde completion bash)",
        "sonde completion zsh > ~/.zfunc/_sonde",
        "sonde completion fish > ~/.config/fish/completions/sonde.fish",
    ),
}
"""The examples of each verb."""
