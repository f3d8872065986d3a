"""Episodes: the feedback line, turns as exact tokens, when an episode ends, two-turn examples from a collection."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparserl import families
from sparserl.errors import SparseRLError
from sparserl.policy.encoder import EncoderInput, EncoderSize, collate
from sparserl.policy.feedback import FEEDBACK_TOKENS
from sparserl.policy.language import Shape
from sparserl.policy.model import Policy, Size, make_policy
from sparserl.policy.sample import Sample, sample_pattern
from sparserl.policy.sampler import Sampler, SampleSettings, Written
from sparserl.policy.tokenizer import Tokenizer
from sparserl.recipes import space
from sparserl.records import Problem, Verdict
from sparserl.train.collected import CollectedCase, Collection, Measurement, ProgramText
from sparserl.train.rl.config import RLConfig
from sparserl.train.rl.crew import Crew
from sparserl.train.rl.episodes import Episode, PlayConfig, Player, episode_reward, feedback, feedback_ids, log_speedup
from sparserl.train.rl.learner import Learner, Line
from sparserl.train.rl.nouns import Judged, Prompt, Rollout
from sparserl.train.rl.objective import imitation
from sparserl.train.rl.turn_pairs import PairRules, encode_pairs, find_pairs, imitation_batch
from sparserl.train.rl.update import lines_of, said_of
from sparserl.train.withheld import withheld_text

TOKENIZER = Tokenizer.load()
SIZE = Size(Shape(64, 2, 4, 2, 128, TOKENIZER.size, 1280), EncoderSize(inner=32, queries=4))
PATTERN = families.make("stencil2d", 0, nx=8, ny=10, points=5)
SEEN = sample_pattern(PATTERN)
PROMPTS = [Prompt(f"case {k}", {"real": f"case {k}"}, Problem(), "regular") for k in range(2)]
SHORT = sorted(
    (r.text for r in space(Problem()) if not withheld_text(r.text)),
    key=lambda text: (len(TOKENIZER.encode(text)), text),
)[:3]
"""the three shortest recipes"""
TINY = [
    f"// layout: rows index=int32\n// launch: spmv<<<div_up(rows, {threads}), {threads}>>>\nvoid spmv() {{ {body}; }}\n"
    for threads, body in ((64, "y[0] = x[1]"), (128, "y[row] = sum"), (256, "return"))
]
"""quick to learn"""


def look(prompt: Prompt) -> Sample:
    return SEEN


def right(time_us: float, floor_us: float = 1.0, **others: int) -> Judged:
    return Judged(
        Verdict.CORRECT, times_us={"solver": time_us}, baseline_us={"solver": 10.0}, floor_us={"solver": floor_us},
        **others,  # type: ignore[arg-type]
    )  # fmt: skip


def reward(judged: Judged) -> float:
    speedup = log_speedup(judged)
    return -2.0 if speedup is None else speedup


class Table:
    """A referee that looks texts up; what it doesn't know can't be read. It answers groups in reverse."""

    def __init__(self, known: Mapping[str, Judged]) -> None:
        self.known, self.asked = known, 0

    def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
        for at in reversed(range(len(groups))):
            self.asked += len(groups[at][1])
            yield at, [self.known.get(text, Judged(Verdict.UNREADABLE, "no program")) for text in groups[at][1]]

    def retime(self, prompt: Prompt, texts: Sequence[str], incumbent: str | None) -> dict[str, Judged]:
        return {text: self.known[text] for text in texts}

    def close(self) -> None: ...


class Scripted(Sampler):
    """Writes given programs, the k-th in turn k; log-probabilities tell the places."""

    def __init__(self, policy: Policy, scripts: Sequence[str], eos: bool = True) -> None:
        super().__init__(policy, TOKENIZER)
        self.scripts, self.eos = scripts, eos
        self.limits: list[int] = []
        self.modes: set[int] = set()
        self.read: list[list[int]] = []

    def sample(  # type: ignore[override]
        self, matrix: EncoderInput, count: int, settings: SampleSettings, forced: Sequence[Sequence[int]] = ()
    ) -> list[list[Written]]:
        assert count == 1 and len(forced) == len(matrix.sizes)
        self.limits.append(settings.max_tokens)
        self.modes |= set(matrix.problem[:, 4].tolist())
        found = []
        for given in forced:
            self.read.append([TOKENIZER.program, *given])
            turn = self._turn([TOKENIZER.program, *given])
            whole = TOKENIZER.encode_program(self.scripts[turn])
            before = len(given) - max((k for k, t in enumerate(given) if t == TOKENIZER.program), default=-1)
            new = whole[before:] if self.eos else whole[before:-1]
            ids = [TOKENIZER.program, *given, *new]
            shown = [0.0] * (1 + len(given)) + [-float(k) for k in range(1, len(new) + 1)]
            found.append([Written(ids, shown, shown, 1 + len(given), "not to be used", self.eos)])
        return found

    def _turn(self, read: list[int]) -> int:
        """Behind the script that is read first, and as many as are read besides."""
        begins = [each for each, text in enumerate(self.scripts) if read[: len(ids := encoded(text))] == ids]
        return min(begins, default=0) + read.count(TOKENIZER.program) - 1


def encoded(text: str) -> list[int]:
    return TOKENIZER.encode_program(text)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(SIZE)


def play(policy: Policy, scripts: Sequence[str], known: Mapping[str, Judged], config: PlayConfig) -> list[Rollout]:
    return Player(Scripted(policy, scripts), Table(known), reward, look, config).play(PROMPTS, 0)


# ---- the line


def test_every_feedback_line_is_short_and_one_line() -> None:
    rng = random.Random(0)
    reasons = [
        "",
        "row 17: 3.25 instead of 4.5",
        "x" * 400,
        "é" * 90,
        "a\nb",
        "k.cu(12): error: identifier 'q' is undefined\n1 error",
    ]
    for verdict in Verdict:
        for reason in reasons:
            line = feedback(Judged(verdict, reason))
            assert "\n" not in line and line and len(TOKENIZER.encode(line + "\n")) <= FEEDBACK_TOKENS, line
    for _ in range(3000):
        time_us, floor_us = 10 ** rng.uniform(-1, 4), 10 ** rng.uniform(-2, 3)
        judged = right(
            time_us, floor_us, registers=rng.randrange(256), sectors=rng.randrange(10 ** rng.randrange(1, 11))
        )
        line = feedback(judged)
        assert len(TOKENIZER.encode(line + "\n")) <= FEEDBACK_TOKENS, line


def test_the_line_says_verdict_speed_floor_registers_and_sectors() -> None:
    assert (
        feedback(right(8.0, 6.0, registers=40, sectors=12_345_678)) == "right 125% floor 75% registers 40 sectors 12M"
    )
    assert feedback(Judged(Verdict.CORRECT, times_us={"solver": 5.0}, baseline_us={"solver": 10.0})) == "right 200%"
    assert feedback(Judged(Verdict.WRONG, "row 17: 3.25 instead of 4.5")) == "wrong: row 17: 3.25 instead of 4.5"
    said = feedback(Judged(Verdict.UNCOMPILABLE, "p.cu(3): warning: w\np.cu(9): error: 'q' is undefined"))
    assert said == "does not compile: 'q' is undefined"


# ---- turns


def test_an_episode_is_its_programs_with_what_was_said_between_them(policy: Policy) -> None:
    known = {SHORT[0]: right(20.0), SHORT[1]: right(5.0), SHORT[2]: Judged(Verdict.WRONG, "row 1")}
    sampler = Scripted(policy, SHORT)
    rollouts = Player(sampler, Table(known), reward, look, PlayConfig(count=3, turns=3)).play(PROMPTS, 0)
    assert [r.group for r in rollouts] == [0, 0, 0, 1, 1, 1]
    programs = [encoded(text) for text in SHORT]
    for rollout in rollouts:
        assert [turn.text for turn in rollout.turns] == SHORT
        between = [feedback_ids(known[text], ("solver",), TOKENIZER) for text in SHORT[:2]]
        assert list(rollout.ids) == programs[0] + between[0] + programs[1][1:] + between[1] + programs[2][1:]
        assert len(rollout.ids) == len(rollout.log_probs) == len(rollout.written)
        for turn, ids in zip(rollout.turns, programs, strict=True):
            assert list(rollout.ids[turn.first : turn.last]) == ids[1:]
            assert all(rollout.written[turn.first : turn.last])
        assert sum(rollout.written) == sum(len(ids) - 1 for ids in programs)
        assert all((value == 0) != wrote for value, wrote in zip(rollout.log_probs, rollout.written, strict=True))
        assert [turn.reward for turn in rollout.turns] == [reward(known[text]) for text in SHORT]
        assert episode_reward(rollout) == reward(known[SHORT[1]])
    behind = [programs[0] + between[0], programs[1] + between[1]]
    assert sampler.read == [[TOKENIZER.program]] * 6 + [behind[0]] * 6 + [behind[1]] * 6, "the last program alone"


def test_what_is_learnt_of_a_third_program_is_what_was_read_when_it_was_written(policy: Policy) -> None:
    known = {text: Judged(Verdict.WRONG, "row 1") for text in SHORT}
    config = RLConfig(k=2, play=PlayConfig(count=2, turns=3))
    rollout = play(policy, SHORT, known, config.play)[0]
    learner = Learner(config, policy, torch.device("cpu"), look, Crew())
    end = rollout.turns[0].last
    first = replace(rollout, turns=rollout.turns[:1], ids=rollout.ids[:end], written=rollout.written[:end])
    line, short = lines_of([rollout, first])
    said, of_short = said_of(learner, [line, short])
    batch = learner.batch([line, short])
    assert int(batch.written.sum()) == sum(rollout.written) + sum(short.written), "each token once"
    for turn, begin in zip(rollout.turns, (0, 0, rollout.turns[1].first - 1), strict=True):
        alone = Line(rollout.prompt, line.ids[begin : turn.last], np.arange(begin, turn.last) >= turn.first, {})
        (expected,) = said_of(learner, [alone])
        assert said["old"][turn.first : turn.last] == pytest.approx(expected["old"][turn.first - begin :], abs=1e-4)
    assert of_short["old"] == pytest.approx(said["old"][: len(short.ids)], abs=1e-4)
    whole = replace(line, parts=())
    third = slice(rollout.turns[2].first, rollout.turns[2].last)
    assert np.abs(said_of(learner, [whole])[0]["old"][third] - said["old"][third]).max() > 1e-3, "all before it tells"


def test_one_turn_is_the_default(policy: Policy) -> None:
    assert all(len(r.turns) == 1 for r in play(policy, SHORT, {SHORT[0]: right(20.0)}, PlayConfig(count=2)))


def test_what_takes_longest_is_judged_first_and_everybody_has_its_own_verdict(policy: Policy) -> None:
    """By sizes times columns of B: the second prompt, then the third, then the first."""
    prompts = [*PROMPTS, replace(PROMPTS[0], case="case 2", problem=Problem(op="spmm", columns=4))]
    sizes = {"case 0": 10, "case 1": 9000, "case 2": 1000}
    order: list[str] = []

    class ByPrompt(Table):
        def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
            order.extend(prompt.case for prompt, _ in groups)
            for at, (prompt, texts) in enumerate(groups):
                yield at, [right(float(sizes[prompt.case])) for _ in texts]

    def sized(prompt: Prompt) -> Sample:
        return replace(SEEN, nonzeros=sizes[prompt.case])

    player = Player(Scripted(policy, SHORT), ByPrompt({}), reward, sized, PlayConfig(count=2))
    rollouts = player.play(prompts, 0)
    assert order == ["case 1", "case 2", "case 0"]
    assert [each.group for each in rollouts] == [0, 0, 1, 1, 2, 2]
    assert [each.turns[0].judged.times_us["solver"] for each in rollouts] == [10, 10, 9000, 9000, 1000, 1000]


@pytest.mark.parametrize(
    ("places", "known_before", "parts"),
    [(1, 0, [7]), (2, 0, [5, 2]), (3, 0, [3, 2, 2]), (3, 1, [5, 2]), (3, 2, [7]), (3, 3, [7])],
)
def test_a_group_that_would_hold_everybody_up_is_judged_in_parts(
    policy: Policy, places: int, known_before: int, parts: list[int]
) -> None:
    """Seven episodes, three texts, the first of them known before: those that wrote the same stay together; the group
    is done when all parts are."""
    texts = [f"text {at % 3}" for at in range(7)]
    known = {text: right(10.0 + at) for at, text in enumerate(dict.fromkeys(texts))}
    seen: list[list[str]] = []

    class Noting(Table):
        def __init__(self) -> None:
            super().__init__(known)
            self.places = places

        def unknown(self, prompt: Prompt, texts: Sequence[str]) -> list[str]:
            return [text for text in dict.fromkeys(texts) if text not in list(known)[:known_before]]

        def judge(self, groups: Sequence[tuple[Prompt, Sequence[str]]]) -> Iterator[tuple[int, list[Judged]]]:
            seen.extend(list(own) for _, own in groups)
            yield from super().judge(groups)

    done: list[list[str]] = []
    large = replace(SEEN, rows=9_000_000)
    player = Player(Scripted(policy, SHORT), Noting(), reward, lambda _: large, PlayConfig(count=7))
    written = [Episode(PROMPTS[0], 0, [1], [0.0], [False], text=text) for text in texts]
    rollouts = player.finish(written, 0, lambda group: done.append([each.turns[0].text for each in group]))
    assert sorted((len(part) for part in seen), reverse=True) == parts
    assert len({text for part in seen for text in set(part)}) == sum(len(set(part)) for part in seen) == 3
    assert [each.turns[0].text for each in rollouts] == texts and done == [texts]
    assert all(each.turns[0].judged == known[each.turns[0].text] for each in rollouts)


def test_a_program_near_the_floor_is_not_written_again(policy: Policy) -> None:
    config = PlayConfig(count=2, turns=3, enough=0.9)
    assert all(len(r.turns) == 1 for r in play(policy, SHORT, {SHORT[0]: right(2.0, 1.9)}, config))
    assert all(len(r.turns) > 1 for r in play(policy, SHORT, {SHORT[0]: right(2.0, 1.7)}, config))


def test_the_same_program_twice_ends_an_episode(policy: Policy) -> None:
    scripts = [SHORT[0], SHORT[0], SHORT[1]]
    assert all(len(r.turns) == 2 for r in play(policy, scripts, {}, PlayConfig(count=2, turns=3)))


def test_a_program_without_an_end_is_the_last(policy: Policy) -> None:
    player = Player(Scripted(policy, SHORT, eos=False), Table({}), reward, look, PlayConfig(count=2, turns=3))
    rollouts = player.play(PROMPTS, 0)
    assert all(len(r.turns) == 1 and r.turns[0].text == SHORT[0] for r in rollouts)


def test_an_episode_ends_where_the_context_has_no_room_for_another_turn() -> None:
    length = len(TOKENIZER.encode_program(SHORT[0]))
    for context, turns in ((int(2.2 * length), 1), (int(2.6 * length) + 50, 2)):
        small = make_policy(Size(replace(SIZE.language, context=context), SIZE.encoder))
        sampler = Scripted(small, [SHORT[0], SHORT[1], SHORT[2]])
        rollouts = Player(sampler, Table({}), reward, look, PlayConfig(count=2, turns=2)).play(PROMPTS, 0)
        assert all(len(r.turns) == turns for r in rollouts), context
        assert all(limit <= context - small.prefix_length - 1 for limit in sampler.limits)


@pytest.mark.parametrize(("modes", "told"), [(("solver",), 0), (("chain",), 1), (("solver", "chain"), 0)])
def test_the_policy_is_told_the_one_mode_that_earns(policy: Policy, modes: tuple[str, ...], told: int) -> None:
    sampler = Scripted(policy, SHORT)
    Player(sampler, Table({}), reward, look, PlayConfig(count=2, modes=modes)).play(PROMPTS, 0)
    assert sampler.modes == {told}


class Forced:
    """Openings that give every prompt the same layout line."""

    def openings(self, prompts: Sequence[Prompt], count: int, seed: int) -> list[list[list[int]]]:
        line = SHORT[0].partition("\n")[0].removeprefix("// layout: ")
        return [[[TOKENIZER.layout, *TOKENIZER.encode(line + "\n")]] * count for _ in prompts]


def test_explored_episodes_begin_with_a_given_layout(policy: Policy) -> None:
    config = PlayConfig(count=4, explored=0.5)
    player = Player(Scripted(policy, SHORT), Table({}), reward, look, config, openings=Forced())
    rollouts = player.play(PROMPTS, 0)
    assert [r.origin for r in rollouts] == ["explore", "explore", "policy", "policy"] * 2
    given = 1 + len(Forced().openings(PROMPTS, 1, 0)[0][0])
    for rollout in rollouts:
        own = given if rollout.origin == "explore" else 1
        assert rollout.turns[0].first == own and not any(rollout.written[:own]) and all(rollout.written[own:])
        assert rollout.turns[0].text == SHORT[0]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SparseRLError, match="turns"):
        PlayConfig(turns=4)
    with pytest.raises(SparseRLError, match="count"):
        PlayConfig(count=0)


# ---- two-turn examples


def collection(programs: Sequence[str] = SHORT) -> Collection:
    """Two matrices; the fast program was made from the slow one, the broken one from the fast one."""
    slow, fast, broken = zip(("slow", "fast", "broken"), programs, strict=True)
    texts = {
        "slow": ProgramText(*slow),
        "fast": ProgramText(*fast, parents=("slow",), mutations=("unroll",)),
        "broken": ProgramText(*broken, parents=("fast",), mutations=("batch",)),
    }

    def measured(name: str, us: float | None, speed: float) -> Measurement:
        verdict = Verdict.WRONG if us is None else Verdict.CORRECT
        times = {} if us is None else {"solver": us}
        speeds = {} if us is None else {"solver": speed}
        reason, floor = "row 3" * (us is None), {"solver": 6.0}
        return Measurement(name, "variant", "f", name, verdict, reason, times, True, speeds, {}, floor, 40)

    def case(name: str, slow_us: float) -> CollectedCase:
        programs = (measured("fast", 10.0, 1.0), measured("slow", slow_us, 10.0 / slow_us), measured("broken", None, 0))
        return CollectedCase(name, "spmv float32", "train", {"real": name}, 80, 80, 400, (), {"solver": 20.0},
                             {"solver": 10.0}, programs)  # fmt: skip

    return Collection((case("one", 15.0), case("two", 10.1)), texts, {})


def test_pairs_are_slower_parent_and_faster_child_or_failure_and_repair() -> None:
    train, dev = find_pairs(collection(), PairRules())
    found = {(p.case, p.kind, p.parent, p.child) for p in train + dev}
    assert found == {
        ("one", "faster", "slow", "fast"),
        ("one", "repair", "broken", "fast"),
        ("two", "repair", "broken", "fast"),  # there the two times are a tie
    }
    assert sum(p.weight for p in train) == pytest.approx(1.0)
    by_case = {name: sum(p.weight for p in train if p.case == name) for name in ("one", "two")}
    assert by_case["one"] == pytest.approx(by_case["two"])


def test_a_slow_child_is_not_taught() -> None:
    stored = collection()
    late = replace(stored.cases[0].programs[0], speed={"solver": 0.7})
    case = replace(stored.cases[0], programs=(late, *stored.cases[0].programs[1:]))
    assert find_pairs(replace(stored, cases=(case,)))[0] == []


def test_a_pair_is_written_as_it_would_be_played() -> None:
    stored = collection()
    pair = next(p for p in find_pairs(stored)[0] if p.kind == "faster")
    (made,) = encode_pairs([pair], stored, 2000, TOKENIZER)
    parent, child = (TOKENIZER.encode_program(text) for text in SHORT[:2])
    assert made.ids.tolist() == parent + feedback_ids(pair.judged, ("solver",), TOKENIZER) + child[1:]
    assert made.ids[made.written].tolist() == child[1:]
    assert feedback(pair.judged) == "right 133% floor 40% registers 40"
    assert encode_pairs([pair], stored, 100, TOKENIZER) == []


def test_a_policy_learns_to_play_two_turns_from_pairs() -> None:
    """Also: log-probabilities of a played episode are those of one forward pass over all of it."""
    torch.manual_seed(0)
    policy = make_policy(SIZE)
    stored = collection(TINY)
    pair = next(p for p in find_pairs(stored)[0] if p.kind == "faster")
    (made,) = encode_pairs([pair], stored, 2000, TOKENIZER)
    whole = replace(made, written=torch.arange(len(made.ids)).numpy() > 0)  # both turns, so that it begins alike
    matrix = collate([SEEN], [Problem()])
    adam = torch.optim.AdamW(policy.parameters(), 4e-3)
    losses = []
    for _ in range(70):
        step = imitation(policy, imitation_batch([whole], matrix))
        adam.zero_grad()
        step.loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(step.loss.detach()))
    assert losses[-1] < 0.05 * losses[0]
    config = PlayConfig(count=2, turns=2, settings=SampleSettings(temperature=0.2, max_tokens=100))
    player = Player(Sampler(policy, TOKENIZER), Table({TINY[0]: pair.judged}), reward, look, config)
    rollouts = player.play(PROMPTS[:1], 3)
    assert rollouts == player.play(PROMPTS[:1], 3)
    played = [r for r in rollouts if [t.text for t in r.turns] == TINY[:2]]
    assert played, [[t.text for t in r.turns] for r in rollouts]
    with torch.no_grad():
        for rollout in rollouts:
            logits = policy(torch.tensor([rollout.ids[:-1]]), matrix)[0].log_softmax(-1)
            plain = logits.gather(1, torch.tensor(rollout.ids[1:])[:, None])[:, 0]
            wrote = torch.tensor(rollout.written[1:])
            assert torch.allclose(plain[wrote], torch.tensor(rollout.log_probs[1:])[wrote], atol=2e-3)
