"""The tokenizer: exact round trips, tokens that stay inside their units, programs, the same file twice."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparserl
from sparserl.errors import ProgramError, SparseRLError, StoreError
from sparserl.policy.tokenizer import OPERATORS, SPECIALS, Tokenizer
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.store import write_folder
from sparserl.train.commands_tokens import tokenizer as command
from sparserl.train.shards import Document, pack_shards
from sparserl.train.tokens import PROBLEMS as TRAINED
from sparserl.train.tokens import TokensConfig, recipe_texts, train_tokenizer
from sparserl.train.withheld import withheld_text
from sparserl.tune import make_problem

SHIPPED = Tokenizer.load()
PROBLEMS = [
    make_problem("spmv", "f32", 1),
    make_problem("spmv", "f64", 1),
    make_problem("spmm", "f32", 8),
    make_problem("spmm", "f32", 64),
]
PROGRAM = """// layout: slices c=32 sigma=1024 group=1 index=int16
// bake: PADDED WIDTH
// workspace: partial acc_t[div_up(rows, 32)] scratch
// launch: spmv<<<div_up(slices, 4), 128>>> pdl
extern "C" __global__ void spmv(int rows)
{
    // bake: not a header line
    y[0] = 1.5e-3f;
}
"""
# what texts are drawn from: code, spellings of special tokens, line ends, and any code point, surrogates included
FRAGMENTS = st.sampled_from(
    [*SPECIALS[:13], "\r\n", "\r", "\n", "\n\t  ", " ", "  ", "\0", "<<<", ">>> ", "->*", "+=", "//", "blockIdx.x",
     "_a1", "１２", "0xffu", "\ud800", "\udfff", "\udce9", "é", "\U0001f600"],
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(st.characters(), max_size=6)), max_size=20).map("".join)


def pieces() -> list[bytes]:
    return [SHIPPED.piece(i) for i in range(len(SPECIALS), SHIPPED.size)]


def small_corpus(folder: Path, copies: int = 40) -> Path:
    """A corpus as `sparserl train corpus` leaves it: text of the package's own CUDA header, and a held-out document."""
    header = (Path(sparserl.__file__).parent / "preamble.cuh").read_text()
    train = [Document("a", f"{i}.cu", header) for i in range(copies)]
    files = dict(pack_shards("train", train, 1 << 16))
    files |= dict(pack_shards("validation", [Document("b", "held.cu", "heldout_word " * 5000)], 1 << 16))
    write_folder(folder / "shards", files, {"kind": "corpus"})
    return folder


# ── Round trips ───────────────────────────────────────────────────────────────


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_comes_back_and_no_special_token_comes_out(text: str) -> None:
    ids = SHIPPED.encode(text)
    assert SHIPPED.decode(ids) == text
    assert all(len(SPECIALS) <= each < SHIPPED.size for each in ids)


@given(st.one_of(st.binary(max_size=60), TEXTS.map(lambda text: text.encode("utf-16-le", "surrogatepass"))))
@settings(max_examples=300, deadline=None)
def test_any_bytes_come_back(data: bytes) -> None:
    assert SHIPPED.decode_bytes(SHIPPED.encode_bytes(data)) == data


def test_every_kind_of_character_comes_back() -> None:
    for point in (*range(0x250), 0x2028, 0xD7FF, 0xD800, 0xDC80, 0xDFFF, 0xE000, 0xFFFD, 0x10FFFF):
        assert SHIPPED.decode(SHIPPED.encode(chr(point))) == chr(point)


def test_a_lone_surrogate_is_three_bytes_and_a_pair_of_them_stays_a_pair() -> None:
    assert SHIPPED.decode_bytes(SHIPPED.encode("\ud83d\ude00")) == b"\xed\xa0\xbd\xed\xb8\x80"
    assert SHIPPED.decode(SHIPPED.encode("\ud83d\ude00")) == "\ud83d\ude00"
    assert SHIPPED.decode(SHIPPED.encode("\U0001f600")) == "\U0001f600"


def test_ids_that_spell_no_utf8_are_shown_as_replacement_characters() -> None:
    assert SHIPPED.decode(SHIPPED.encode_bytes(b"a\xffb")) == "a\ufffdb"


@pytest.mark.parametrize("special", SPECIALS)
def test_the_spelling_of_a_special_token_is_text(special: str) -> None:
    for text in (special, f"a{special}{special}b", f" {special}\n"):
        ids = SHIPPED.encode(text)
        assert min(ids) >= len(SPECIALS)
        assert SHIPPED.decode(ids) == text


def test_special_tokens_have_the_first_32_ids_and_decode_as_they_are_spelled() -> None:
    assert len(SPECIALS) == 32
    assert SHIPPED.special == {each: i for i, each in enumerate(SPECIALS)}
    for name in ("pad", "bos", "eos", "program", "layout", "bake", "workspace", "launch", "code", "fim_prefix",
                 "fim_middle", "fim_suffix", "feedback"):  # fmt: skip
        assert getattr(SHIPPED, name) == SHIPPED.special[f"<{name}>"]
    assert SHIPPED.decode(range(32)) == "".join(SPECIALS)


@pytest.mark.parametrize("wrong", [-1, SHIPPED.size, 10**9])
def test_an_id_of_another_vocabulary_is_refused(wrong: int) -> None:
    with pytest.raises(SparseRLError, match=str(wrong)):
        SHIPPED.decode([40, wrong])


@given(TEXTS.map(lambda text: text.encode("utf-8", "replace").decode()))
@settings(max_examples=100, deadline=None)
def test_the_table_of_units_gives_what_the_library_gives(text: str) -> None:
    assert SHIPPED.encode(text) == SHIPPED._library.encode(text, add_special_tokens=False).ids


def test_a_full_table_of_units_is_emptied_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SHIPPED.encode(PROGRAM)
    fresh = Tokenizer.load()
    monkeypatch.setattr("sparserl.policy.tokenizer._CACHED_UNITS", 7)
    assert fresh.encode(PROGRAM) == expected
    assert len(fresh._known) <= 7


# ── The vocabulary ────────────────────────────────────────────────────────────


def test_the_shipped_vocabulary_has_8192_tokens_all_bytes_among_them_each_once() -> None:
    found = pieces()
    assert SHIPPED.size == 8192
    assert {bytes([i]) for i in range(256)} <= set(found)
    assert len(set(found)) == len(found)


def test_no_token_has_a_newline_with_anything_but_indentation_behind_it() -> None:
    for piece in pieces():
        assert b"\n" not in piece or re.fullmatch(rb"\n[ \t]*", piece), piece


def test_no_token_mixes_identifier_characters_with_anything_but_one_leading_space() -> None:
    for piece in pieces():
        if re.search(rb"[A-Za-z0-9_]", piece):
            assert re.fullmatch(rb" ?[A-Za-z0-9_]+", piece), piece


def test_no_token_crosses_two_identifiers_or_ends_in_a_blank_after_text() -> None:
    for piece in pieces():
        assert len(re.findall(rb"[A-Za-z_][A-Za-z0-9_]*", piece)) <= 1, piece
        assert not re.search(rb"[^ \t\n][ \t]", piece), piece


def test_no_token_joins_punctuation_but_the_operators_of_the_list() -> None:
    parts = {mark[i:j] for mark in OPERATORS for i in range(len(mark)) for j in range(i + 1, len(mark) + 1)}
    for piece in pieces():
        text = piece.decode("latin-1").removeprefix(" ")
        if re.search(r"[!-/:-@\[-^`{-~]", text):
            assert len(text) == 1 or text in parts, piece


@given(st.integers(0, 10**12), st.sampled_from(["", " ", "=", "(", "\n", "-"]))
@settings(max_examples=200, deadline=None)
def test_a_number_is_the_same_tokens_of_at_most_three_digits_everywhere(number: int, before: str) -> None:
    alone = SHIPPED.encode(str(number))
    assert all(re.fullmatch(rb"[0-9]{1,3}", SHIPPED.piece(each)) for each in alone)
    assert SHIPPED.encode(before + str(number))[-len(alone) :] == alone


def test_no_token_holds_more_than_one_character_outside_ascii() -> None:
    for piece in pieces():
        if max(piece) > 0x7F:
            assert not re.search(rb"[\x00-\x7f]", piece), piece
            assert len(piece) <= 4, piece
            assert len(piece.decode("utf-8", "ignore")) <= 1, piece


def test_the_names_of_layouts_and_primitives_are_whole_tokens() -> None:
    for name in ("row_start", "cols", "vals", "warp_sum", "is_padding", "slice_start", "acc_t", "value_t", "blockIdx"):
        assert min(len(SHIPPED.encode(name)), len(SHIPPED.encode(" " + name))) == 1, name


# ── Programs ──────────────────────────────────────────────────────────────────


def test_a_program_is_its_parts() -> None:
    ids = SHIPPED.encode_program(PROGRAM)
    specials = [SPECIALS[each] for each in ids if each < len(SPECIALS)]
    assert specials == ["<program>", "<layout>", "<bake>", "<workspace>", "<launch>", "<code>", "<eos>"]
    bake = ids[ids.index(SHIPPED.bake) + 1 : ids.index(SHIPPED.workspace)]
    assert SHIPPED.decode(bake) == "PADDED WIDTH\n"
    body = ids[ids.index(SHIPPED.code) + 1 : -1]
    assert SHIPPED.decode(body) == PROGRAM[PROGRAM.index("extern") :]
    assert SHIPPED.decode_program(ids) == PROGRAM


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_recipe_program_survives_quickly_and_the_median_is_at_most_600_tokens(problem: Problem) -> None:
    texts = [recipe.text for recipe in space(problem)]
    start_s = time.process_time()
    encoded = [SHIPPED.encode_program(text) for text in texts]
    decoded = [SHIPPED.decode_program(ids) for ids in encoded]
    spent_s = time.process_time() - start_s
    assert decoded == texts
    counts = sorted(map(len, encoded))
    assert counts[len(counts) // 2] <= 600
    assert counts[-1] <= 2560
    assert spent_s <= 1.0 * max(1, len(texts) / 1000)


def test_a_body_that_spells_special_tokens_survives() -> None:
    text = PROGRAM.replace("1.5e-3f", '"<eos><code>// layout: "')
    ids = SHIPPED.encode_program(text)
    assert SHIPPED.decode_program(ids) == text
    assert ids.count(SHIPPED.eos) == ids.count(SHIPPED.code) == ids.count(SHIPPED.layout) == 1


@pytest.mark.parametrize(
    "old, new", [("// layout: ", "//layout:"), ("4), 128", "4),128"), ("32)]", "32) ]"), (" WIDTH", ", WIDTH")]
)
def test_a_program_in_another_form_is_refused(old: str, new: str) -> None:
    assert old in PROGRAM
    with pytest.raises(ProgramError, match="canonical"):
        SHIPPED.encode_program(PROGRAM.replace(old, new, 1))


def test_a_text_without_a_header_is_no_program() -> None:
    with pytest.raises(ProgramError, match="layout"):
        SHIPPED.encode_program("int main() {}\n")


def test_decoding_stops_at_eos_and_does_without_it() -> None:
    ids = SHIPPED.encode_program(PROGRAM)
    assert SHIPPED.decode_program([*ids, SHIPPED.pad, *ids]) == PROGRAM
    assert SHIPPED.decode_program(ids[:-1]) == PROGRAM
    assert SHIPPED.decode_program(ids[1:]) == PROGRAM
    assert SHIPPED.decode_program([]) == ""


def test_special_tokens_out_of_place_stay_visible() -> None:
    ids = SHIPPED.encode_program(PROGRAM)
    body = ids.index(SHIPPED.code) + 1
    for stray in (SHIPPED.program, SHIPPED.layout, SHIPPED.code, SHIPPED.pad, SHIPPED.fim_middle):
        assert SPECIALS[stray] in SHIPPED.decode_program([*ids[:body], stray, *ids[body:]])


# ── Files ─────────────────────────────────────────────────────────────────────


def test_the_shipped_file_loads_in_under_100_ms_and_is_small() -> None:
    spent_s = []
    for _ in range(5):
        start_s = time.process_time()
        Tokenizer.load()
        spent_s.append(time.process_time() - start_s)
    assert min(spent_s) < 0.1
    assert len(SHIPPED._json.encode()) < 700_000


def test_a_saved_tokenizer_is_the_same_when_loaded(tmp_path: Path) -> None:
    SHIPPED.save(tmp_path / "a" / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "a" / "tokenizer.json")
    assert again.encode_program(PROGRAM) == SHIPPED.encode_program(PROGRAM)
    assert again._json == SHIPPED._json


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"vocab": {"a": 0}}}', "\udcff"])
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=re.escape(str(path))):
        Tokenizer.load(path)


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere\.json.*sparserl train tokenizer"):
        Tokenizer.load(tmp_path / "nowhere.json")


def test_a_vocabulary_with_other_special_tokens_is_refused() -> None:
    with pytest.raises(StoreError, match="special tokens"):
        Tokenizer(SHIPPED._json.replace('"<feedback>"', '"<remark>"'))


# ── Training ──────────────────────────────────────────────────────────────────


def test_the_same_corpus_gives_the_same_file_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sparserl.records import Problem; "
        "from sparserl.train.tokens import TokensConfig, train_tokenizer; "
        "config = TokensConfig(Path(sys.argv[1]), 900, problems=(Problem('spmm', 'float32', 8),)); "
        "train_tokenizer(config).save(Path(sys.argv[2]))"
    )
    corpus, other = small_corpus(tmp_path / "corpus"), tmp_path / "other.json"
    subprocess.run([sys.executable, "-c", code, str(corpus), str(other)], check=True, timeout=120)
    made = train_tokenizer(TokensConfig(corpus, 900, problems=(Problem("spmm", "float32", 8),)))
    made.save(tmp_path / "this.json")
    assert made.size == 900
    assert (tmp_path / "this.json").read_bytes() == other.read_bytes()


def test_the_command_writes_a_tokenizer_and_says_how_long_recipes_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(corpus=small_corpus(tmp_path), out=tmp_path / "tokenizer.json", size=600)
    made = Tokenizer.load(tmp_path / "tokenizer.json")
    said = capsys.readouterr().out
    assert f"{made.size} tokens" in said
    assert re.search(r"spmv float32: \d+ recipe programs, tokens: median \d+", said)
    assert made.decode_program(made.encode_program(PROGRAM)) == PROGRAM


def test_held_out_text_takes_no_part(tmp_path: Path) -> None:
    made = train_tokenizer(TokensConfig(small_corpus(tmp_path), 1000, problems=()))
    assert len(made.encode(" heldout_word")) > 2
    assert len(made.encode(" is_padding")) == 1


@pytest.mark.parametrize("corpus_bytes", [0, 20_000, 3_000_000])
def test_recipes_are_at_most_a_tenth_of_the_training_bytes_and_none_is_withheld(corpus_bytes: int) -> None:
    chosen = recipe_texts(TRAINED, corpus_bytes)
    size = sum(len(text.encode()) for text in chosen)
    assert size <= 0.1 * (size + corpus_bytes)
    assert size > 0.1 * (size + corpus_bytes) - 4096  # a program is shorter than that
    assert not any(withheld_text(text) for text in chosen)


@pytest.mark.parametrize("wrong", [{"size": 287}, {"size": 10**6}, {"recipe_share": 0.11}, {"recipe_share": -0.1}])
def test_a_setting_out_of_range_is_refused_by_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SparseRLError, match=next(iter(wrong))):
        TokensConfig(tmp_path, **wrong)


def test_a_folder_without_a_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparseRLError, match="sparserl train corpus"):
        train_tokenizer(TokensConfig(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match=re.escape(str(tmp_path))):
        train_tokenizer(TokensConfig(tmp_path))
