import time

import msgspec

from engine.logprobs import Candidates, Logprob, read_candidates

FEW = [(7, -0.5, 1), (3, -1.5, 2)]
MANY = [(7, -2.0, 3), *((100 + i, -3.0 - i, 4 + i) for i in range(1000))]


def as_sent(entries: list[tuple[int, float, int]]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(entries))


def test_few_candidates_are_a_dict() -> None:
    expected = {7: Logprob(-0.5, 1, "7"), 3: Logprob(-1.5, 2, "3")}
    assert read_candidates(as_sent(FEW), str) == (expected, -0.5)
    assert read_candidates(FEW, str) == (expected, -0.5)


def test_many_candidates_read_like_the_dict_and_decode_what_is_looked_at() -> None:
    decoded: list[int] = []

    def decode(token_id: int) -> str:
        decoded.append(token_id)
        return str(token_id)

    candidates, chosen = read_candidates(as_sent(MANY), decode)
    assert isinstance(candidates, Candidates) and chosen == -2.0
    assert list(candidates)[:2] == [7, 100]
    assert len(candidates) == 1001 and 100 in candidates and 99 not in candidates
    assert candidates.get(99) is None
    assert candidates[100] == Logprob(-3.0, 4, "100")
    assert decoded == [100]
    assert candidates == {token_id: Logprob(p, r, str(token_id)) for token_id, p, r in MANY}


def test_a_whole_vocabulary_takes_no_time_until_it_is_read() -> None:
    sent = as_sent([(i, -1.0, i) for i in range(150_000)])
    times = []
    for _ in range(5):
        started = time.process_time()
        read_candidates(sent, str)
        times.append(time.process_time() - started)
    assert min(times) < 0.02
