"""`sonde translate` and `sonde score` on a run that the trainer made: order, n-best, references,
moved data.
"""

import io
import json
import math
import shutil
from pathlib import Path

import pytest
from small_corpus import TINY, prepare_corpus, sentences

from sonde.cli.main import run
from sonde.errors import SettingError
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings, settings_from
from sonde.train.translation import open_translator

NUM_UPDATES = 150


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to translate its few words."""
    folder = tmp_path_factory.mktemp("trained")
    data = prepare_corpus(folder)
    sizes = {**TINY, "model_dim": 32, "ffn_dim": 64}
    settings = RecipeSettings(
        data=str(data),
        max_updates=NUM_UPDATES,
        warmup=20,
        lr=1e-2,
        max_tokens=400,
        dropout=0.0,
        log_interval=1000,
        **sizes,
    )
    train_run(settings, folder / "run")
    return folder / "run"


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for language in ("en", "de"):
        paths[language] = tmp_path / f"test.{language}"
        paths[language].write_text("".join(f"{line}\n" for line in sentences(language, 20)))
    return paths


@pytest.mark.slow
def test_translations_come_in_the_order_of_the_input_and_match_the_library_call(
    trained: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "translate",
        str(trained),
        "--input",
        str(texts["en"]),
        "--beam",
        "2",
        "--batch-tokens",
        "20",
    ]
    assert run(command) == 0
    printed = capsys.readouterr().out.splitlines()
    translator = open_translator(trained)
    found = translator.translate(sentences("en", 20), translator.search(beam=2))
    assert printed == [translation.text for translation in found]
    right = sum(made == other for made, other in zip(printed, sentences("de", 20), strict=True))
    assert right >= 15


@pytest.mark.slow
def test_references_give_bleu_and_chrf_on_standard_error(
    trained: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    assert (
        run(["translate", str(trained), "--input", str(texts["en"]), "--ref", str(texts["de"])])
        == 0
    )
    captured = capsys.readouterr()
    scores = dict(line.split()[:2] for line in captured.err.splitlines())
    assert float(scores["BLEU"]) > 60
    assert float(scores["chrF"]) > 60
    assert len(captured.out.splitlines()) == 20
    texts["de"].write_text("zu kurz\n")
    assert (
        run(["translate", str(trained), "--input", str(texts["en"]), "--ref", str(texts["de"])])
        == 1
    )
    assert "has 1 lines and" in capsys.readouterr().err


@pytest.mark.slow
def test_n_best_is_ranked_and_json_is_one_document(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    pipe("one two\nthree\n")
    assert run(["translate", str(trained), "--input", "-", "--nbest", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1]) >= float(rows[2][1])
    pipe("one two\n")
    assert run(["translate", str(trained), "--json", "--nbest", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step"] == NUM_UPDATES
    assert [len(translation["nbest"]) for translation in document["translations"]] == [2]
    assert document["translations"][0]["text"] == rows[0][2]


@pytest.mark.slow
def test_scores_are_the_likelihood_of_the_pairs(
    trained: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        "score",
        str(trained),
        "--source",
        str(texts["en"]),
        "--target",
        str(texts["de"]),
        "--json",
    ]
    assert run(pairs) == 0
    right = json.loads(capsys.readouterr().out)
    assert right["num_tokens"] == sum(len(line.split()) + 1 for line in sentences("de", 20))
    total = sum(sum(pair["token_scores"]) for pair in right["pairs"])
    assert right["perplexity"] == pytest.approx(math.exp(-total / right["num_tokens"]))
    texts["de"].write_text("".join(f"{line}\n" for line in reversed(sentences("de", 20))))
    run(pairs)
    assert json.loads(capsys.readouterr().out)["perplexity"] > 3 * right["perplexity"]
    assert run(["score", str(trained), "--target", str(texts["de"])]) == 1
    assert "need sources" in capsys.readouterr().err


@pytest.mark.slow
def test_data_that_moved_is_found_again_and_another_tokenizer_is_refused(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(trained.parent / "data", tmp_path / "moved")
    assert open_translator(tmp_path / "run", data=tmp_path / "moved").step == NUM_UPDATES
    other = prepare_corpus(tmp_path / "other", languages=("de", "en"), num=9)
    with pytest.raises(Exception, match="another tokenizer"):
        open_translator(tmp_path / "run", data=other)
    with pytest.raises(SettingError, match="is not at"):
        open_translator(tmp_path / "run", data=tmp_path / "nowhere")


@pytest.mark.slow
def test_a_language_model_continues_text_and_scores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepare_corpus(tmp_path, languages=("en",))
    sizes = {**TINY, "model_dim": 32}
    settings = RecipeSettings(
        data=str(data), max_updates=20, warmup=5, lr=1e-2, block_size=16, max_tokens=200, **sizes
    )
    train_run(settings, tmp_path / "run")
    capsys.readouterr()
    (tmp_path / "in").write_text("one two\nthree\n")
    assert (
        run(["translate", str(tmp_path / "run"), "--input", str(tmp_path / "in"), "--beam", "1"])
        == 0
    )
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["score", str(tmp_path / "run"), "--target", str(tmp_path / "in")]) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["3", "2"]


@pytest.mark.slow
def test_translations_can_be_drawn(
    trained: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def drawn(*told: str) -> list[str]:
        assert run(["translate", str(trained), "--input", str(texts["en"]), *told]) == 0
        return capsys.readouterr().out.splitlines()

    hot = ("--sample", "--temperature", "3", "--seed", "1")
    assert drawn(*hot) == drawn(*hot, "--batch-tokens", "20")
    assert drawn(*hot) != drawn("--sample", "--temperature", "3", "--seed", "2")
    assert drawn("--top-k", "1") == drawn("--beam", "1") == drawn("--min-p", "1.0")
    assert len(drawn(*hot, "--nbest", "3")) == 3 * 20


@pytest.mark.slow
def test_a_language_model_continues_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepare_corpus(tmp_path, languages=("en",))
    given = {
        **TINY,
        "data": str(data),
        "max_updates": 2,
        "warmup": 1,
        "max_tokens": 256,
        "block_size": 32,
    }
    train_run(settings_from(given), tmp_path / "run")
    capsys.readouterr()
    prompt = sentences("en", 1)[0]
    told = ["generate", str(tmp_path / "run"), "--prompt", prompt, "--max-len", "5"]
    assert run([*told, "--num", "2", "--seed", "3", "--temperature", "1.5"]) == 0
    first, second = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert first.startswith(prompt)
    assert second.startswith(prompt)
    assert first != second
    assert run([*told, "--greedy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], len(document["texts"][0]["texts"])) == (2, 1)
    assert run([*told, "--greedy", "--num", "2"]) == 1


@pytest.mark.slow
def test_a_translation_model_translates_the_prompt(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", str(trained), "--prompt", sentences("en", 1)[0], "--greedy"]) == 0
    assert capsys.readouterr().out == sentences("de", 1)[0] + "\n"
