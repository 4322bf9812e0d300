"""tests/gpu/engines.py on the CPU: rows of what an engine reports, and what breaks its limits."""
import pytest
import torch

import engines
import flp


def rows():
    return engines.rows_of(engines.TINY, torch.device("cpu"))


def test_one_call_reports_what_steps_do():
    *prompts, steps = rows()
    assert [row["k"] for row in prompts] == [0, 20] and not any(row["failed"] for row in (*prompts, steps))
    assert all(row["flp_error"] < 1e-5 < 1e-3 < row["vllm_error"] for row in prompts)
    assert steps["different_bits"] == 0 and steps["contract"].startswith("cpu: bf16 V=1024 D=64 ")


@pytest.mark.long
def test_values_that_depend_on_the_number_of_rows_are_found(monkeypatch):
    call = flp.linear_logprob

    def off(hidden, *operands, **options):
        logprob, *others = call(hidden, *operands, **options)
        return (logprob - 1e-3 * (len(hidden) < 64), *others)

    monkeypatch.setattr(flp, "linear_logprob", off)
    *prompts, steps = rows()
    assert steps["failed"] == ["different_bits"] and steps["different_bits"] == 2 * (1 + 7)
    monkeypatch.setattr(flp, "linear_logprob", lambda *operands, **options: (
        lambda found: (found[0] - 0.01, *found[1:]))(call(*operands, **options)))
    assert all(row["failed"] == ["error"] for row in rows()[:-1])
