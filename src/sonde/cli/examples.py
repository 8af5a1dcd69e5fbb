"""What `sonde VERB --help` shows below the options: up to three command lines that people type.

A test parses every one of them. Importing this module imports no verb.
"""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "demo": ("sonde demo", "sonde demo --check", "sonde demo --heal"),
    "watch": (
        "sonde watch runs",
        "sonde watch runs --alert https://hooks.slack.com/services/…",
        "sonde watch train.log --until-done",
    ),
    "runs": ("sonde runs", "sonde runs experiments", "sonde runs experiments --json"),
    "show": ("sonde show runs/mine", "sonde show runs/mine --all", "sonde show runs/mine --json"),
    "tail": (
        "sonde tail runs/mine",
        "sonde tail runs/mine --lines 50 --once",
        "sonde tail train.json",
    ),
    "dashboard": (
        "sonde dashboard runs",
        "sonde dashboard runs/mine",
        "sonde dashboard runs --port 8080",
    ),
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
    "check": (
        "sonde check -- python train.py",
        "sonde check -- python train.py --lr 3e-4",
        "sonde check --json -- python train.py",
    ),
    "compare": (
        "sonde compare dump-a dump-b",
        "sonde compare dump-a dump-b --differences",
        "sonde compare dump-a dump-b --rtol 1e-5",
    ),
    "compare-logs": (
        "sonde compare-logs runs/before runs/after",
        "sonde compare-logs runs/before runs/after --metric val.loss --rtol 0.01",
        "sonde compare-logs before.json after.json --smooth 20",
    ),
    "rollback": (
        "sonde rollback runs/mine --step 186",
        "sonde rollback runs/mine --step 186 --apply",
        "sonde rollback runs/mine --step 186 --worst 1",
    ),
    "skip": (
        "sonde skip runs/mine --step 186",
        "sonde skip runs/mine --step 186 --worst 1",
        "sonde skip runs/mine --step 186 --out skip-list.txt",
    ),
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
        "sonde prepare --train corpus.txt --tokenizer bytes --out data",
    ),
    "inspect": (
        "sonde inspect data",
        "sonde inspect data --sample 382",
        "sonde inspect data --verify",
    ),
    "train": (
        "sonde train data --run runs/mine --max-epochs 20",
        "sonde train --run runs/mine",
        "sonde train data --run runs/mine --arch base --heal 3",
    ),
    "translate": (
        "sonde translate runs/mine --input text.en",
        "sonde translate runs/mine --input test.en --ref test.de",
        "sonde translate runs/mine --input text.en --sample --top-p 0.9",
    ),
    "generate": (
        "sonde generate runs/mine --prompt 'Once upon a time'",
        "sonde generate runs/mine --prompt 'Once' --num 5 --temperature 0.8",
        "sonde generate runs/mine --prompt 'Once' --greedy --max-len 40",
    ),
    "score": (
        "sonde score runs/mine --source text.en --target text.de",
        "sonde score runs/mine --target text.txt",
        "sonde score runs/mine --target text.txt --json",
    ),
    "plot": (
        "sonde plot runs/mine",
        "sonde plot runs/mine loss grad_norm",
        "sonde plot runs/mine loss lr --from 100 --to 400",
    ),
    "log": ("sonde log runs/mine", "sonde log train.json", "sonde log a.json b.json --csv"),
    "report": (
        "sonde report runs/mine",
        "sonde report runs/mine -o mine.html",
        "sonde report runs/mine -o report.md",
    ),
    "sync": (
        "sonde sync runs/mine /backup/mine",
        "sonde sync runs/mine s3://bucket/mine",
        "sonde sync runs/mine gs://bucket/mine",
    ),
    "import-tensorboard": (
        "sonde import-tensorboard tb-logs --out runs/imported",
        "sonde import-tensorboard lightning_logs --out runs/imported",
    ),
    "import-wandb": (
        "sonde import-wandb wandb --out runs/imported",
        "sonde import-wandb wandb/run-x.wandb --out runs/imported",
    ),
    "import-trainer-state": (
        "sonde import-trainer-state output --out runs/imported",
        "sonde import-trainer-state output/trainer_state.json --out runs/imported",
    ),
    "import-log": (
        "sonde import-log train.log --out runs/imported",
        "sonde import-log logs --out runs/imported",
        "sonde import-log metrics.csv --out runs/imported",
    ),
    "completion": (
        "source <(sonde completion bash)",
        "sonde completion zsh > ~/.zfunc/_sonde",
        "sonde completion fish > ~/.config/fish/completions/sonde.fish",
    ),
}
"""The examples of each verb."""
