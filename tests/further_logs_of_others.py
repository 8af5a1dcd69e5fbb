"""Further logs as other programs write them: each is a function from a step and its loss to the
text that the program adds to its log at that step. `FIRST` is what stands above them.
"""

import json
from collections.abc import Callable, Mapping

Line = Callable[[int, float], str]


def torchtune(step: int, loss: float) -> str:
    return f"Step {step} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:405.04 grad_norm:1.1 "


def litgpt(step: int, loss: float) -> str:
    val = "n/a" if step < 50 else "2.861"
    return (
        f"Epoch {1 + step // 200} | iter {step * 5} step {step} | loss train: {loss:.3f},"
        f" val: {val} | iter time: 112.20 ms (step) remaining time: 0:01:54"
    )


def litgpt_table(step: int, loss: float) -> str:
    row = f"{step // 200},{step * 10},0.11,0.0004,{loss},{step},{step * 4096},,"
    return f"{row}\n,,,,,{step},,2.86,17.4" if step % 50 == 0 else row


def old_fairseq(step: int, loss: float) -> str:
    epoch, batch = divmod(step - 1, 200)
    return (
        f"| epoch {epoch + 1:03d}  {batch + 1} / 200 loss={loss:.2f} (1.50), wps=962, wpb=908,"
        " bsz=32, lr=0.001, clip=100%, gnorm=2.14"
    )


def fairseq_json(step: int, loss: float) -> str:
    record = {"epoch": 1, "loss": f"{loss:.3f}", "ppl": "7.2", "num_updates": str(step)}
    return f"2022-01-01 12:00:01 | INFO | train_inner | {json.dumps(record)}"


def screen_of_dllogger(step: int, loss: float) -> str:
    return (
        f"DLL 2022-04-05 02:22:54.614486 - Training Epoch: 1 Training Iteration: {step} "
        f" step_loss : {loss}  learning_rate : 1.58e-05 "
    )


def gpt_neox(step: int, loss: float) -> str:
    return (
        f"[2023-07-25 21:03:17,269] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/"
        f"global_step={step}, RunningAvgSamplesPerSec=7.86, MemAllocated=59.65GB\n"
        f" samples/sec: 7.799 | iteration {step:8d}/   10000 | elapsed time per iteration (ms):"
        f" 4103.1 | learning rate: 2.111E-06 | lm_loss: {loss:.6E} | number of skipped"
        " iterations:   0 | number of nan iterations:   0 |\n"
        f"[2023-07-25 21:03:21,037] [INFO] [logging.py:96:log_dist] [Rank 0] step={step},"
        " skipped=0, lr=[2.17e-06, 2.17e-06], mom=[[0.9, 0.95], [0.9, 0.95]]"
    )


def deepspeed_pipeline(step: int, loss: float) -> str:
    return f"steps: {step} loss: {loss:0.4f} iter time (s): 1.234 samples/sec: 51.8"


def composer(step: int, loss: float) -> str:
    return (
        f"[batch={step}/4800]:\n\t Train time/batch: {step - 1}\n"
        f"\t Train loss/train/total: {loss:.4f}\n"
        "\t Train metrics/train/LanguagePerplexity: 114.9\n"
        "\t Train lr-DecoupledAdamW/group0: 0.0001"
    )


def keras(step: int, loss: float) -> str:
    return (
        f"Epoch {step}/400\n\x1b[1m10/10\x1b[0m \x1b[32m━━━━━━━━\x1b[0m\x1b[37m\x1b[0m"
        f" \x1b[1m1s\x1b[0m 100ms/step - accuracy: 0.5123 - loss: {loss:.4f} - val_loss: 2.9"
    )


def ultralytics_table(step: int, loss: float) -> str:
    return f"{step:23d},{loss:19.5f},{2.0:19.5f},{0.4:19.5f},{2.1:19.5f}"


def ultralytics(step: int, loss: float) -> str:
    return (
        "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        f"\r    {step:3d}/400      2.61G      {loss:.3f}      1.402      1.293        142"
        "        640: 100%|██████████| 8/8 [00:01<00:00,  4.34it/s]\n"
        "                 Class     Images  Instances      Box(P          R      mAP50\n"
        "                   all        128        929      0.664      0.552      0.621"
    )


def mmdetection(step: int, loss: float) -> str:
    epoch, batch = divmod(step - 1, 50)
    return (
        f"2023/01/10 12:00:01 - mmengine - INFO - Epoch(train)  [{epoch + 1}][{batch + 1:4d}/50] "
        f" base_lr: 1.0e-02 lr: 1.0e-02  eta: 1:02:03  time: 0.5000  loss: {loss:.4f} "
        " loss_cls: 0.9  loss_bbox: 0.8"
    )


def detectron(step: int, loss: float) -> str:
    return (
        "\x1b[32m[01/10 12:00:01 d2.utils.events]: \x1b[0m eta: 1:02:03 "
        f" iter: {step}  total_loss: {loss:.3f}  loss_cls: 0.5  time: 0.3245  lr: 0.00025"
    )


def trainer_with_bars_below(step: int, loss: float) -> str:
    printed = {"loss": round(loss, 4), "grad_norm": 1.1, "epoch": round(step / 100, 2)}
    return f"{printed}\n\r {step // 4}%|██        | {step}/400 [00:10<10:00,  1.50s/it]"


def trainer_with_evaluations(step: int, loss: float) -> str:
    printed = str({"loss": round(loss, 4), "learning_rate": 2e-5, "epoch": step / 100})
    evaluated = str({"eval_loss": 9.5, "eval_runtime": 12.3, "epoch": step / 100})
    return f"{printed}\n{evaluated}" if step % 40 == 0 else printed


def trainer_of_strings(step: int, loss: float) -> str:
    return f"{{'loss': '{loss:.4f}', 'grad_norm': '1.1', 'ppl': '9', 'epoch': '{step / 100:.4g}'}}"


def notebook(step: int, loss: float) -> str:
    return f"{step}\t{loss:.6f}\t2.900000"


def nanochat_sft(step: int, loss: float) -> str:
    line = f"Step {step:05d}/00400 | Training loss: {loss:.6f}| lrm: 0.98| num_tokens: 10,123"
    return f"{line}\nStep {step:05d} | Validation loss: 2.600000" if step % 50 == 0 else line


def build_nanogpt(step: int, loss: float) -> str:
    line = f"{step} train {loss:.6f}"
    return f"{line}\n{step} val 2.6500\n{step} hella 0.2512" if step % 50 == 0 else line


def ray_tune(step: int, loss: float) -> str:
    return f"{loss},1.2,True,{step},abc_00000,2023-01-01_12-00-01,{1672574401 + step},0.001"


def rllib(step: int, loss: float) -> str:
    return f"12.3,{step * 4000},{step},-0.01,{loss},50.2"


def stable_baselines(step: int, loss: float) -> str:
    return (
        "-----------------------------\n| time/            |        |\n"
        f"|    iterations    | {step} |\n| train/           |        |\n"
        f"|    approx_kl     | 0.0123 |\n|    loss          | {loss:.4f} |\n"
        "|    value_loss    | 50.2   |"
    )


def xgboost(step: int, loss: float) -> str:
    return f"[{step}]\ttrain-logloss:{loss:.5f}\tvalidation-logloss:2.9"


def lightgbm(step: int, loss: float) -> str:
    return f"[{step}]\ttraining's binary_logloss: {loss:.6f}\tvalid_1's binary_logloss: 2.9"


def t5x(step: int, loss: float) -> str:
    return (
        f"I0101 12:00:01.123456 140 logging_writer.py:48] [{step}] accuracy=0.5123,"
        f" loss={loss:.6f}, learning_rate=0.001"
    )


def fastai(step: int, loss: float) -> str:
    return f"{step}         {loss:.6f}    2.900000    0.500000  00:12     "


def spacy(step: int, loss: float) -> str:
    return f"  0  {step:6d}  {loss:12.2f}    5.12    4.10    0.05"


def speechbrain(step: int, loss: float) -> str:
    return f"epoch: {step}, lr: 1.00e+00 - train loss: {loss:.2f} - valid loss: 2.9, valid WER: 12"


def coqui(step: int, loss: float) -> str:
    return (
        f"\x1b[1m   --> TIME: 12:00:01 -- STEP: {step % 100}/100 -- GLOBAL_STEP: {step}\x1b[0m\n"
        f"     | > loss: {loss:.5f}  (3.1)\n     | > grad_norm_0: 12.3  (13.1)"
    )


def kohya(step: int, loss: float) -> str:
    return (
        f"\rsteps:  {step // 4}%|██▋  | {step}/400 [01:02<10:00,  1.2it/s, avr_loss=2.9,"
        f" loss={loss:.4f}]"
    )


def nemo_bar(step: int, loss: float) -> str:
    return (
        f"Epoch 0: : {step // 4}%|██ | {step}/400 [01:02<10:00, reduced_train_loss={loss:.3f},"
        f" global_step={step:.1f}, consumed_samples={step * 8:.1f}]"
    )


def maxtext(step: int, loss: float) -> str:
    return f"completed step: {step}, seconds: 1.234, TFLOP/s/device: 123.456, loss: {loss:.3f}"


def internlm(step: int, loss: float) -> str:
    return (
        f"2024-01-01 12:00:01,123\tINFO train.py:123 in record -- tflops=123.4,step={step},"
        f"loss={loss},tgs (tokens/gpu/second)=4123.4,lr=0.0001,loss_scale=65536.0,"
        "grad_norm={'0_default': 1.23},micro_num=4,inf_nan_skip_batches=0"
    )


def mindformers(step: int, loss: float) -> str:
    return (
        "2024-05-01 12:00:01,123 - mindformers[callback.py:327] - INFO - { Epoch:[  1/  2],"
        f" step:[{step:5d}/ 1000], loss:[{loss:.3f}/2.900], time:1234.567 ms, lr:9.9e-06"
    )


def thousands(step: int, loss: float) -> str:
    return f"step {step} | loss {loss * 1000:,.1f} | lr 1e-4"


def steps_with_exponents(step: int, loss: float) -> str:
    return f"step={step:.6e} loss={loss:.4e}"


def numpy_numbers(step: int, loss: float) -> str:
    return f"{{'loss': np.float64({loss}), 'step': {step}}}"


def aim_export(step: int, loss: float) -> str:
    rows = [
        f'abc,Run: 1,loss,"{{""subset"": ""{subset}""}}",{step},{1.7e9 + step},{value}'
        for subset, value in (("train", loss), ("val", 2.9))
    ]
    return "\n".join(rows)


def comet_export(step: int, loss: float) -> str:
    return json.dumps({"metricName": "train_loss", "metricValue": str(loss), "step": step})


def logged_as_json(step: int, loss: float) -> str:
    return json.dumps({"levelname": "INFO", "message": f"step {step} loss {loss:.4f}"})


def log_of_docker(step: int, loss: float) -> str:
    return json.dumps({"log": f"iter {step}: loss {loss:.4f}, time 12.3ms\n", "stream": "stdout"})


FORMATS: Mapping[str, Line] = {
    line.__name__: line
    for line in (
        torchtune,
        litgpt,
        litgpt_table,
        old_fairseq,
        fairseq_json,
        screen_of_dllogger,
        gpt_neox,
        deepspeed_pipeline,
        composer,
        keras,
        ultralytics_table,
        ultralytics,
        mmdetection,
        detectron,
        trainer_with_bars_below,
        trainer_with_evaluations,
        trainer_of_strings,
        notebook,
        nanochat_sft,
        build_nanogpt,
        ray_tune,
        rllib,
        stable_baselines,
        xgboost,
        lightgbm,
        t5x,
        fastai,
        spacy,
        speechbrain,
        coqui,
        kohya,
        nemo_bar,
        maxtext,
        internlm,
        mindformers,
        thousands,
        steps_with_exponents,
        numpy_numbers,
        aim_export,
        comet_export,
        logged_as_json,
        log_of_docker,
    )
}
"""Every format, by its name."""

FIRST: Mapping[str, str] = {
    "litgpt_table": "epoch,iter,iter_time,learning_rate,loss,step,tokens,val_loss,val_ppl",
    "ultralytics_table": "     epoch,   train/box_loss,   train/cls_loss,   recall,   val/box_loss",
    "notebook": "Step\tTraining Loss\tValidation Loss",
    "ray_tune": "train_loss,time_s,done,training_iteration,trial_id,date,timestamp,config/lr",
    "rllib": "reward,timesteps_total,training_iteration,s/policy_loss,s/total_loss,s/vf_loss",
    "fastai": "epoch     train_loss  valid_loss  accuracy  time    ",
    "spacy": "=== Training pipeline ===\nE    #       LOSS NER  ENTS_F  ENTS_P  SCORE \n---  -----",
    "aim_export": "run.hash,run.name,metric.name,metric.context,step,time,value",
}
